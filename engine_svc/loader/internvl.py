"""The image encoder of InternVL in OpenGVLab's checkpoints, by the names of Transformers."""

from __future__ import annotations

import re

import torch

from engine_svc.loader.formats.base import CheckpointFormat

_PROJECTOR = "mlp1."
# Regular expressions for names, and their replacements, applied one after the other.
_RENAMES = (
    (r"^mlp1\.0\.", "multi_modal_projector.layer_norm."), (r"^mlp1\.1\.", "multi_modal_projector.linear_1."),
    (r"^mlp1\.3\.", "multi_modal_projector.linear_2."), (r"^vision_model\.", "vision_tower."),
    (r"\.class_embedding$", ".cls_token"), (r"\.position_embedding$", ".position_embeddings"),
    (r"\.patch_embedding\.", ".patch_embeddings.projection."), (r"\.encoder\.layers\.", ".encoder.layer."),
    (r"\.ls(\d)$", r".lambda_\1"), (r"\.norm1\.", ".layernorm_before."), (r"\.norm2\.", ".layernorm_after."),
    (r"\.attn\.proj\.", ".attention.projection_layer."), (r"\.attn\.", ".attention."),
)  # fmt: skip


def is_published(source: CheckpointFormat) -> bool:
    """Whether a checkpoint of InternVL is OpenGVLab's, and not in Transformers' layout."""
    return any(name.startswith(_PROJECTOR) for name in source.names())


def encoder_tensors(source: CheckpointFormat) -> dict[str, torch.Tensor]:
    """The tensors of the encoder and the projector, in Transformers' layout.

    Raises:
        StartupError: a file is missing or broken.
    """
    found: dict[str, torch.Tensor] = {}
    for name, tensor in source.tensors():
        if not name.startswith(("vision_model.", _PROJECTOR)):
            continue
        for pattern, theirs in _RENAMES:
            name = re.sub(pattern, theirs, name)
        parts = {name: tensor[...].clone()}
        if ".attention.qkv." in name:
            thirds = zip("qkv", parts[name].chunk(3), strict=True)
            parts = {name.replace(".qkv.", f".{part}_proj."): values for part, values in thirds}
        found |= parts
    return found
