"""A family of vision-language models, and the shapes that many of them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Tiles of four or sixteen patches, so that images of 30 to 60 pixels have 4 to 40 tokens.
SIDE = 28
SQUARE = {"height": SIDE, "width": SIDE}
TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": SIDE,
    "patch_size": 7,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}


def rope(*section: int, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(section)} | fields}


@dataclass(frozen=True)
class Family:
    """A kind of model; see `FAMILIES` for examples.

    `name` is that of the model class in Transformers without ForConditionalGeneration. `token_ids` has the fields of
    the configuration that are ids of tokens. The text and vision configurations may name a model_type.
    """

    name: str
    processor: str
    image_processor: str
    template: str
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    image_fields: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    token_ids: Mapping[str, str | tuple[str, ...]] = field(default_factory=lambda: {"image_token_index": "<image>"})
    tokens: tuple[str, ...] = ("<image>",)  # special ones, besides those of ChatML
    token_attributes: Mapping[str, str] = field(default_factory=dict)  # that the tokenizer has
    processor_fields: Mapping[str, Any] | None = None  # None: there is no processor_config.json
    feature_extractor: Mapping[str, Any] | None = None  # for audio, in processor_config.json
    video_processor: str = ""  # empty if it reads no videos
    video_fields: Mapping[str, Any] = field(default_factory=dict)
    is_nested: bool = False  # processor_config.json includes what other folders have in preprocessor_config.json
    is_flat: bool = False  # config.json has the text model's fields at its top level
