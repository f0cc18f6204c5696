"""Families that put marks around and within images: numbers, or tokens whose embeddings their encoders have learned."""

from __future__ import annotations

from typing import Any

from tests.support.vision_models import templates
from tests.support.vision_models.family import SQUARE, TEXT, VISION, Family, rope
from tests.support.vision_models.qwen_families import DELTA_TEXT

_OVIS_MARKS = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")

_SAM = VISION | {
    "num_hidden_layers": 1, "patch_size": 1, "image_size": 64, "window_size": 16, "global_attn_indexes": [],
    "output_channels": 16, "downsample_channels": [24, 32], "mlp_ratio": 1.0,
}  # fmt: skip

# An image is a small copy of the whole, and up to four slices.
_MINICPM: dict[str, Any] = {
    "template": templates.MINICPM_V,
    "text": DELTA_TEXT | {"model_type": "qwen3_5_text"},
    "vision": VISION | {"patch_size": 4},
    "config": {"insert_layer_id": 0},
    "token_ids": {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
    "tokens": (
        "<|image_pad|>", "<|video_pad|>", "<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>",
    ),
    "token_attributes": {
        "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "image_start_token": "<image>",
        "image_end_token": "</image>", "slice_start_token": "<slice>", "slice_end_token": "</slice>",
        "image_id_start_token": "<image_id>", "image_id_end_token": "</image_id>",
    },
    "image_fields": {"patch_size": 4, "scale_resolution": 32, "max_slice_nums": 4},
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    # The number of embeddings is a constant: 144 of a copy of the whole, and 256 of each of up to six tiles. (In
    # published models, it is the other way round.)
    "deepseek_ocr2": Family(
        "DeepseekOcr2", "DeepseekOcr2Processor", "DeepseekOcr2ImageProcessor", templates.DEEPSEEK_OCR,
        text=TEXT | {
            "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 1,
            "mlp_layer_types": ["dense", "sparse"], "routed_scaling_factor": 1.5,
        },
        vision={
            "sam_config": _SAM,
            "encoder_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 2, "vocab_size": 1,
            },
        },
        token_ids={"image_token_id": "<image>"},
        tokens=("<|begin|>", "<image>"),
        image_fields={"size": {"height": 48, "width": 48}, "tile_size": 64},
        processor_fields={"patch_size": 1},
    ),
    "hunyuan_vl": Family(
        "HunYuanVL", "HunYuanVLProcessor", "HunYuanVLImageProcessor", templates.HUNYUAN_VL,
        text=TEXT | rope(2, 2, 2, 2, rope_type="dynamic", alpha=3.0, factor=1.0),
        vision={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "patch_size": 7, "max_image_size": 28,
        },
        token_ids={"image_token_id": "<image>", "im_start_id": "<img>", "im_end_id": "</img>"},
        tokens=("<|hy_begin|>", "<|hy_user|>", "<|hy_assistant|>", "<img>", "</img>", "<image>"),
        token_attributes={"image_token": "<image>", "image_start_token": "<img>", "image_end_token": "</img>"},
        image_fields={"patch_size": 7, "size": {"shortest_edge": 784, "longest_edge": 3136}},
    ),
    "minicpm_ocr": Family(
        "MiniCPMOcr", "MiniCPMOcrProcessor", "MiniCPMOcrImageProcessor", **_MINICPM | {
            "image_fields": _MINICPM["image_fields"] | {"downsample_mode": "4x"},
        },
    ),
    # Patches are merged twice.
    "minicpmv4_6": Family("MiniCPMV4_6", "MiniCPMV4_6Processor", "MiniCPMV4_6ImageProcessor", **_MINICPM),
    "ovis2": Family(
        "Ovis2", "Ovis2Processor", "Ovis2ImageProcessor", templates.INTERNVL.replace("<IMG_CONTEXT>", "<image>"),
        text=TEXT | {"model_type": "qwen2"},
        vision=VISION | {"vocab_size": 40, "hidden_stride": 2},
        config={"hidden_size": 64, "vocab_size": 265, "tie_word_embeddings": False},
        token_ids={"image_token_id": "<IMG_ATOM>", "visual_indicator_token_ids": _OVIS_MARKS},
        tokens=("<image>", "<IMG_ATOM>", *_OVIS_MARKS),
        image_fields={"size": SQUARE, "crop_to_patches": True, "max_patches": 4},
        processor_fields={"image_seq_length": 4},
    ),
}  # fmt: skip
