"""Maps a checkpoint's tensor names to parameters and their parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from engine_svc.layers.module_names import EXPERT_PARTS, OTHERWISE, PARTS
from quire.retrievers import PREFIX

_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)\.(\w+)")
# All experts, or the gates or ups of all, in one tensor, which may have no module of its own.
_ALL_EXPERTS = re.compile(r"(.+\.experts)\.(gate_up|gate|up|down)_proj(?:[._](\w+))?")
_HEAD_NORM = re.compile(r"(.+)\.norms\.(\d+)\.(\w+)")  # norm of one head
# For models that read media or speak, of which only the text model is loaded: prefixes to remove, and modules to leave
# out.
_PREFIXES = (PREFIX, "thinker.", "model.", "language_model.", "text_model.", "model.")
_OF_OTHERS = (
    "vision_tower.", "vision_model.", "vision_encoder.", "vision_embedder.", "visual.", "multi_modal_projector.",
    "mm_projector.", "projector.", "mlp1.", "embed_vision.", "embed_audio.", "vision_projection.", "connector.",
    "density_router.", "layerwise_projectors.", "spatial_projectors.", "mlp_AR.", "image_newline", "audio_tower.",
    "encoder.", "talker.", "token2wav.", "code2wav.", "merger.", "vit.", "visual_embeddings_table.",
    "view_separator", "view_seperator", "sam_model.", "qwen2_model.", "vision_projector.", "aligner.",
    "patch_merge_mlp.",
)  # fmt: skip
_LAYER = re.compile(r"layers\.(\d+)\.")
_OF_TEXT = ("embed_tokens.", "layers.", "lm_head.", "norm.", "embed_tokens_per_layer.", "per_layer_", "altup_")


def parameter_name(
    name: str, module_names: Mapping[str, str], renames: Sequence[tuple[str, str]] = ()
) -> tuple[str, str]:
    """(name of the parameter, name of its part that the tensor is).

    Args:
        module_names, renames: see ModelConfig.
    """
    for pattern, ours in renames:
        name = re.sub(pattern, ours, name)
    if module_names:
        name = ".".join(module_names.get(module, module) for module in name.split("."))
    name = without_prefixes(name)
    for ours, other in OTHERWISE:
        name = name.replace(other, ours)
    expert = _EXPERT.fullmatch(name)
    if expert and expert[3] in EXPERT_PARTS:
        parameter, part = EXPERT_PARTS[expert[3]]
        return f"{expert[1]}.{parameter}.{expert[4]}", f"{expert[2]}.{part}"
    fused = _ALL_EXPERTS.fullmatch(name)
    if fused:
        is_one = fused[2] in ("gate", "up")
        matrix, part = ("gate_up", f".{fused[2]}") if is_one else (fused[2], "")
        return f"{fused[1]}.{matrix}.{fused[3] or 'weight'}", part
    if head := _HEAD_NORM.fullmatch(name):
        return f"{head[1]}.{head[3]}", head[2]
    path, _, kind = name.rpartition(".")
    parent, _, module = path.rpartition(".")
    module, part = PARTS.get(module, (module, ""))
    return ".".join(filter(None, (parent, module, kind))), part


def without_prefixes(name: str) -> str:
    """The name in a text model on its own."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def parameter_of_module(
    module: str, module_names: Mapping[str, str], renames: Sequence[tuple[str, str]]
) -> tuple[str, str]:
    """(path of the layer for a checkpoint's module, name of its matrix); see `parameter_name`."""
    name, part = parameter_name(f"{module}.weight", module_names, renames)
    return name.removesuffix(".weight"), part


def is_of_another(target: str, num_layers: int) -> bool:
    """Whether a parameter is of a layer after the model's own (multi-token prediction), or reads media or speaks."""
    layer = _LAYER.match(target)
    return target.startswith(_OF_OTHERS) or (layer is not None and int(layer[1]) >= num_layers)


def is_of_text(name: str) -> bool:
    """Whether a tensor belongs to the text model of one that reads media too. Of some text models, none seems to."""
    return parameter_name(name, {})[0].startswith(_OF_TEXT)
