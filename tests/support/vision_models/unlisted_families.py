"""Families that Quire has no code for: their images are read because Transformers' code shows that they can be."""

from __future__ import annotations

from typing import Any

from tests.support.vision_models import templates
from tests.support.vision_models.family import SIDE, SQUARE, TEXT, VISION, Family

_CLIP: dict[str, Any] = VISION | {"model_type": "clip_vision_model"}
_JANUS: dict[str, Any] = {
    "processor": "JanusProcessor",
    "image_processor": "JanusImageProcessor",
    "template": templates.LLAVA,
    "vision": VISION | {"projection_dim": 64, "mlp_ratio": 2, "num_image_tokens": 16},
    "config": {"vq_config": {
        "base_channels": 32, "latent_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1,
        "projection_dim": 64, "image_token_embed_dim": 64, "num_embeddings": 16, "num_patches": 4,
    }},
    "token_ids": {"image_token_id": "<image>"},
    "tokens": ("<image>", "<begin_of_image>", "<end_of_image>"),
    "token_attributes": {
        "image_token": "<image>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>",
    },
    "image_fields": {"size": SQUARE, "min_size": 7},
    "processor_fields": {"num_image_tokens": 16},
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    "janus": Family("Janus", text=TEXT | {"model_type": "llama"}, **_JANUS),
    # Its text model is not one of Quire's, either.
    "janus_persimmon": Family("Janus", text=TEXT | {"model_type": "persimmon"}, **_JANUS),
    "video_llava": Family(
        "VideoLlava", "VideoLlavaProcessor", "VideoLlavaImageProcessor", templates.LLAVA,
        text=TEXT | {"model_type": "llama"},
        vision=_CLIP,
        token_ids={"image_token_index": "<image>", "video_token_index": "<video>"},
        tokens=("<image>", "<video>"),
        image_fields={"size": {"shortest_edge": SIDE}, "crop_size": SQUARE},
        processor_fields={
            "patch_size": 7, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default",
        },
    ),
}  # fmt: skip
