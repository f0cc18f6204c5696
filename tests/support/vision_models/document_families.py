"""Families of models that read documents, and VideoLLaMA 3."""

from __future__ import annotations

from typing import Any

from tests.support.vision_models import templates
from tests.support.vision_models.family import SIDE, SQUARE, TEXT, VISION, Family
from tests.support.vision_models.qwen_families import QWEN_PIXELS, QWEN_TOKENS

_ANYRES = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]
_GRANITE: dict[str, Any] = TEXT | {
    "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 2.0,
}  # fmt: skip
# As many patches as published ones have, because their processor always writes the same number of tokens; all layers
# have windows, so that this is cheap.
_OCR_SIDE = 64

FAMILIES: dict[str, Family] = {
    "got_ocr2": Family(
        "GotOcr2", "GotOcr2Processor", "GotOcr2ImageProcessor", templates.GOT_OCR2,
        text=TEXT | {"model_type": "qwen2"},
        vision={
            "hidden_size": 16, "output_channels": 8, "mlp_dim": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": _OCR_SIDE, "patch_size": 1, "window_size": 7, "global_attn_indexes": [],
        },
        token_ids={"image_token_index": "<imgpad>"},
        tokens=("<img>", "</img>", "<imgpad>"),
        image_fields={"size": {"height": _OCR_SIDE, "width": _OCR_SIDE}},
        processor_fields={},
    ),
    # Each of six kinds of features is added before a layer of its own.
    "granite4_vision": Family(
        "Granite4Vision", "Granite4VisionProcessor", "LlavaNextImageProcessor", templates.GRANITE_VISION,
        text=_GRANITE | {"num_hidden_layers": 6},
        vision=VISION | {
            "model_type": "siglip_vision_model", "vision_use_head": False, "hidden_size": 64, "num_hidden_layers": 3,
        },
        config={
            "vision_feature_select_strategy": "full", "image_grid_pinpoints": _ANYRES, "downsample_rate": "1/2",
            "deepstack_layer_map": [[1, 3], [-1, 0]], "spatial_target_layers": [1, 2, 4, 5],
            "qformer_config": {"model_type": "blip_2_qformer", "num_hidden_layers": 1, "intermediate_size": 48},
        },
        tokens=("<image>", "<|user|>", "<|assistant|>", "<|system|>"),
        image_fields={"size": {"shortest_edge": SIDE}, "crop_size": SQUARE, "image_grid_pinpoints": _ANYRES},
        processor_fields={
            "patch_size": 7, "vision_feature_select_strategy": "full", "image_token": "<image>",
            "downsample_rate": "1/2",
        },
    ),
    "granite_docling": Family(
        "GraniteDocling", "GraniteDoclingProcessor", "GraniteDoclingImageProcessor", templates.GRANITE_DOCLING,
        text=_GRANITE | {"num_hidden_layers": 3},  # more than deepstack layers
        vision=VISION | {"out_hidden_size": 64, "scale_factor": 2, "deepstack_visual_indexes": [0, 1]},
        config={"density_router_hidden_size": 8},
        token_ids={"image_token_id": "<image>"},
        tokens=(
            "<|start_of_role|>", "<|end_of_role|>", "<fake_token_around_image>", "<image>", "<global-img>",
            *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
        ),
        image_fields={"size": SQUARE, "max_patches": 4},
        processor_fields={"image_seq_len": 4},
    ),
    "granite_vision": Family(
        "LlavaNext", "LlavaNextProcessor", "LlavaNextImageProcessor", templates.GRANITE_VISION,
        text=_GRANITE | {"model_type": "granite"},
        vision=VISION | {
            "model_type": "siglip_vision_model", "vision_use_head": False, "patch_size": 14, "num_hidden_layers": 3,
        },
        config={
            "vision_feature_layer": [-3, 1, -1], "vision_feature_select_strategy": "full",
            "image_grid_pinpoints": _ANYRES, "tie_word_embeddings": True,
        },
        tokens=("<image>", "<|user|>", "<|assistant|>", "<|system|>"),
        image_fields={"size": {"shortest_edge": SIDE}, "crop_size": SQUARE, "image_grid_pinpoints": _ANYRES},
        processor_fields={"patch_size": 14, "vision_feature_select_strategy": "full", "image_token": "<image>"},
    ),
    "video_llama3": Family(
        "VideoLlama3", "VideoLlama3Processor", "VideoLlama3ImageProcessor", templates.QWEN2_VL,
        text=TEXT | {"model_type": "qwen2"},
        vision={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "patch_size": 7,
        },
        token_ids={"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
        tokens=QWEN_TOKENS,
        image_fields=QWEN_PIXELS,
        processor_fields={},
    ),
}  # fmt: skip
