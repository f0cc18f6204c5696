"""Qwen's families, and those that have adopted their encoder and its processors."""

from __future__ import annotations

from typing import Any

from tests.support.vision_models import templates
from tests.support.vision_models.family import EXPERTS, TEXT, Family, rope

QWEN_VISION: dict[str, Any] = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 7, "out_hidden_size": 64,
}  # fmt: skip
QWEN_PIXELS: dict[str, Any] = {
    "patch_size": 7, "size": {"shortest_edge": 784, "longest_edge": 3136},  # areas
}  # fmt: skip
_QWEN2_VIDEOS: dict[str, Any] = {
    "video_processor": "Qwen2VLVideoProcessor", "video_fields": {
        "patch_size": 7, "size": {"shortest_edge": 784, "longest_edge": 9000}, "cap_pixels_per_frame": False,
    },
}  # fmt: skip
QWEN3_VIDEOS: dict[str, Any] = {
    "video_processor": "Qwen3VLVideoProcessor",
    "video_fields": {
        "patch_size": 7, "size": {"shortest_edge": 784, "longest_edge": 12000}, "cap_pixels_per_frame": False,
    },
}  # fmt: skip
QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
QWEN_IDS = {
    "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>", "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}  # fmt: skip
# Layers of the gated delta rule, and attention that rotates a quarter of each head.
DELTA_TEXT: dict[str, Any] = TEXT | rope(3, 3, 2, mrope_interleaved=True, partial_rotary_factor=0.5) | {
    "num_hidden_layers": 4, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
_QWEN3_5: dict[str, Any] = {
    "processor": "Qwen3VLProcessor",
    "image_processor": "Qwen2VLImageProcessor",
    "template": templates.QWEN3_VL,
    "vision": QWEN_VISION | {"num_position_embeddings": 16},
    "token_ids": QWEN_IDS,
    "tokens": QWEN_TOKENS,
    "image_fields": QWEN_PIXELS,
    **QWEN3_VIDEOS,
}

FAMILIES: dict[str, Family] = {
    "qwen2_vl": Family(
        "Qwen2VL",
        "Qwen2VLProcessor",
        "Qwen2VLImageProcessor",
        templates.QWEN2_VL,
        text=TEXT | rope(2, 3, 3),
        vision={"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 7},
        config={"tie_word_embeddings": True},
        token_ids=QWEN_IDS,
        tokens=QWEN_TOKENS,
        image_fields=QWEN_PIXELS,
        **_QWEN2_VIDEOS,
        is_flat=True,
    ),
    "qwen2_5_vl": Family(
        "Qwen2_5_VL",
        "Qwen2_5_VLProcessor",
        "Qwen2VLImageProcessor",
        templates.QWEN2_VL,
        text=TEXT | rope(2, 3, 3),
        vision=QWEN_VISION | {"window_size": 28, "fullatt_block_indexes": [1], "tokens_per_second": 1},
        token_ids=QWEN_IDS,
        tokens=QWEN_TOKENS,
        image_fields=QWEN_PIXELS,
        **_QWEN2_VIDEOS,
        is_flat=True,
    ),
    "exaone4_5": Family(
        "Exaone4_5_",
        "Exaone4_5_Processor",
        "Qwen2VLImageProcessor",
        templates.QWEN2_VL,
        text=TEXT | {"model_type": "exaone4", "num_hidden_layers": 4, "sliding_window": 16},
        vision=QWEN_VISION
        | {
            "window_size": 28,
            "fullatt_block_indexes": [1],
            "num_heads": 4,
            "num_key_value_heads": 2,
        },
        token_ids=QWEN_IDS,
        tokens=QWEN_TOKENS,
        image_fields=QWEN_PIXELS,
        **_QWEN2_VIDEOS,
    ),
    "qwen3_vl": Family(
        "Qwen3VL",
        "Qwen3VLProcessor",
        "Qwen2VLImageProcessor",
        templates.QWEN3_VL,
        text=TEXT | rope(4, 2, 2, mrope_interleaved=True) | {"num_hidden_layers": 3},  # more than deepstack layers
        vision=QWEN_VISION | {"depth": 3, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16},
        token_ids=QWEN_IDS,
        tokens=QWEN_TOKENS,
        image_fields=QWEN_PIXELS,
        **QWEN3_VIDEOS,
    ),
    "qwen3_vl_moe": Family(
        "Qwen3VLMoe",
        "Qwen3VLProcessor",
        "Qwen2VLImageProcessor",
        templates.QWEN3_VL,
        text=TEXT | EXPERTS | rope(4, 2, 2, mrope_interleaved=True) | {"num_hidden_layers": 3},
        vision=QWEN_VISION | {"depth": 3, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16},
        token_ids=QWEN_IDS,
        tokens=QWEN_TOKENS,
        image_fields=QWEN_PIXELS,
        **QWEN3_VIDEOS,
    ),
    "qwen3_5": Family("Qwen3_5", **_QWEN3_5 | {"text": DELTA_TEXT}),
    "qwen3_5_moe": Family(
        "Qwen3_5Moe", **_QWEN3_5 | {"text": DELTA_TEXT | EXPERTS | {"shared_expert_intermediate_size": 32}}
    ),
}
