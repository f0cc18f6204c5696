"""The families: classes and configurations in Transformers, and what their tokenizers and processors have."""

from __future__ import annotations

from typing import Any

from tests.support.vision_models import (
    document_families,
    marked_families,
    qwen_families,
    templates,
    unlisted_families,
)
from tests.support.vision_models.family import EXPERTS, SIDE, SQUARE, TEXT, VISION, Family, rope
from tests.support.vision_models.qwen_families import QWEN3_VIDEOS, QWEN_IDS, QWEN_PIXELS, QWEN_TOKENS, QWEN_VISION

_CLIP: dict[str, Any] = VISION | {"model_type": "clip_vision_model"}
_SIGLIP: dict[str, Any] = VISION | {"model_type": "siglip_vision_model", "vision_use_head": False}
_PIXTRAL: dict[str, Any] = VISION | {"model_type": "pixtral", "image_size": 56, "head_dim": 16}
_ANYRES = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]
_PIXTRAL_TOKENS = (
    "<s>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[IMG]",
    "[IMG_BREAK]",
    "[IMG_END]",
)
_LLAVA_NEXT: dict[str, Any] = {
    "text": TEXT | {"model_type": "mistral", "sliding_window": None},
    "vision": _CLIP | {"patch_size": 14},
    "config": {"vision_feature_layer": -2, "image_grid_pinpoints": _ANYRES},
    "image_fields": {"size": {"shortest_edge": SIDE}, "crop_size": SQUARE, "image_grid_pinpoints": _ANYRES},
    "processor_fields": {
        "patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default",
        "image_token": "<image>",
    },
}  # fmt: skip
_IDEFICS_TOKENS = (
    "<|begin_of_text|>", "<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)  # fmt: skip
_IDEFICS: dict[str, Any] = {
    "template": templates.IDEFICS3,
    "text": TEXT | {"model_type": "llama"},
    "vision": VISION,
    "config": {"scale_factor": 2},
    "token_ids": {"image_token_id": "<image>"},
    "tokens": _IDEFICS_TOKENS,
    "image_fields": {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}},
    "processor_fields": {"image_seq_len": 4},
}


_GLM_ROPE = rope(1, 2, 1, partial_rotary_factor=0.5)
_GLM: dict[str, Any] = {
    "processor": "Glm4vProcessor",
    "image_processor": "Glm4vImageProcessor",
    "template": templates.GLM4V,
    "vision": QWEN_VISION | {"intermediate_size": 96, "image_size": SIDE},
    "config": {"tie_word_embeddings": False},
    "token_ids": {
        "image_token_id": "<|image|>",
        "video_token_id": "<|video|>",
        "image_start_token_id": "<|begin_of_image|>",
        "image_end_token_id": "<|end_of_image|>",
        "video_start_token_id": "<|begin_of_video|>",
        "video_end_token_id": "<|end_of_video|>",
    },
    "tokens": (
        "[gMASK]",
        "<sop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|begin_of_image|>",
        "<|end_of_image|>",
        "<|image|>",
        "<|begin_of_video|>",
        "<|end_of_video|>",
        "<|video|>",
    ),
    "image_fields": {"patch_size": 7, "size": {"shortest_edge": 784, "longest_edge": 6272}},
    "video_processor": "Glm4vVideoProcessor",
    "video_fields": {"patch_size": 7, "size": {"shortest_edge": 784, "longest_edge": 12000}},
}

_GEMMA4: dict[str, Any] = {
    "processor": "Gemma4Processor",
    "image_processor": "Gemma4ImageProcessor",
    "template": templates.GEMMA4,
    "text": TEXT | {
        "num_hidden_layers": 6, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "num_key_value_heads": 1, "global_head_dim": 32, "sliding_window": 20, "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 300,
        "final_logit_softcapping": 20.0, "pad_token_id": 0,
    },
    "vision": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "pooling_kernel_size": 2,
        "position_embedding_size": 140, "standardize": True, "use_clipped_linears": True,
    },
    "config": {
        "tie_word_embeddings": False,  # which would make it repeat the last token
        "audio_config": {
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "subsampling_conv_channels": [16, 8], "output_proj_dims": 24,
        },
    },
    "token_ids": {
        "image_token_id": "<|image|>", "video_token_id": "<|video|>", "audio_token_id": "<|audio|>",
        "boi_token_id": "<|image>", "eoi_token_id": "<image|>", "boa_token_id": "<|audio>",
        "eoa_token_index": "<audio|>",
    },
    "tokens": (
        "<bos>", "<|turn>", "<turn|>", "<|image>", "<|image|>", "<image|>", "<|audio>", "<|audio|>", "<audio|>",
        "<|video|>",
    ),
    "token_attributes": {
        "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>", "audio_token": "<|audio|>",
        "boa_token": "<|audio>", "eoa_token": "<audio|>",
    },
    "image_fields": {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 2},
    "processor_fields": {},
    "feature_extractor": {"feature_size": 16},
    "video_processor": "Gemma4VideoProcessor",
    "video_fields": {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 2},
    "is_nested": True,
}  # fmt: skip

# Layers of short convolutions; images are a tile, or up to six and a small copy of the whole, of another shape.
_LFM2_VL: dict[str, Any] = {
    "processor": "Lfm2VlProcessor",
    "image_processor": "Lfm2VlImageProcessor",
    "template": templates.LFM2_VL,
    "vision": VISION | {"model_type": "siglip2_vision_model", "num_patches": 16, "vision_use_head": False},
    "config": {"projector_hidden_size": 48},
    "token_ids": {"image_token_id": "<image>"},
    "tokens": (
        "<|startoftext|>", "<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>",
        *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 7) for column in range(1, 7)),
    ),
    "image_fields": {
        "encoder_patch_size": 7, "tile_size": SIDE, "min_image_tokens": 3, "max_image_tokens": 6, "max_tiles": 6,
        "max_pixels_tolerance": 1.0,
    },
    "processor_fields": {},
}  # fmt: skip
_CONVOLUTIONS = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2}

FAMILIES: dict[str, Family] = {
    # Tiles have 490 or 980 pixels along each side; the processor knows no others.
    "aria": Family(
        "Aria", "AriaProcessor", "AriaImageProcessor", templates.LLAVA,
        text=TEXT | {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1, "intermediate_size": 48},
        vision=VISION | {"image_size": 980, "patch_size": 70},
        config={"projector_patch_to_query_dict": {"49": 4, "196": 9}},
        tokens=("<image>",),
        token_attributes={"image_token": "<image>"},
        image_fields={},
        processor_fields={"size_conversion": {"490": 4, "980": 9}},
    ),
    "deepseek_vl": Family(
        "DeepseekVL", "DeepseekVLProcessor", "DeepseekVLImageProcessor", templates.LLAVA,
        text=TEXT | {"model_type": "llama"},
        vision=_SIGLIP,
        token_ids={"image_token_id": "<image>"},
        token_attributes={"image_token": "<image>"},
        image_fields={"size": SQUARE},
        processor_fields={"num_image_tokens": 16},
    ),
    "hyperclovax_vision": Family(
        "HyperCLOVAXVisionV2", "HyperCLOVAXVisionV2Processor", "Qwen2VLImageProcessor", templates.QWEN2_VL,
        text=TEXT | {"model_type": "hyperclovax", "residual_multiplier": 0.6, "logits_scaling": 0.5},
        vision=QWEN_VISION | {"window_size": 28, "fullatt_block_indexes": [1]},
        token_ids={"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
        tokens=QWEN_TOKENS,
        image_fields=QWEN_PIXELS,
    ),
    "llava": Family(
        "Llava", "LlavaProcessor", "CLIPImageProcessor", templates.LLAVA,
        text=TEXT | {"model_type": "llama"},
        vision=_CLIP,
        config={"vision_feature_layer": -2, "vision_feature_select_strategy": "default"},
        image_fields={"size": {"shortest_edge": SIDE}, "crop_size": SQUARE},
        processor_fields={
            "patch_size": 7, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default",
            "image_token": "<image>",
        },
    ),
    "vipllava": Family(
        "VipLlava", "LlavaProcessor", "CLIPImageProcessor", templates.VIPLLAVA,
        text=TEXT | {"model_type": "llama"},
        vision=_CLIP | {"num_hidden_layers": 3},
        config={"vision_feature_layer": [-2, -3, 1]},
        image_fields={"size": {"shortest_edge": SIDE}, "crop_size": SQUARE},
        processor_fields={
            "patch_size": 7, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default",
            "image_token": "<image>",
        },
    ),
    "llava_next": Family(
        "LlavaNext", "LlavaNextProcessor", "LlavaNextImageProcessor", templates.LLAVA_NEXT, **_LLAVA_NEXT,
    ),
    "llava_next_video": Family(
        "LlavaNextVideo", "LlavaNextVideoProcessor", "LlavaNextImageProcessor", templates.LLAVA_NEXT,
        **_LLAVA_NEXT | {
            "token_ids": {"image_token_index": "<image>", "video_token_index": "<video>"},
            "tokens": ("<image>", "<video>"),
        },
    ),
    "llava_onevision": Family(
        "LlavaOnevision", "LlavaOnevisionProcessor", "LlavaOnevisionImageProcessor", templates.LLAVA_ONEVISION,
        text=TEXT | {"model_type": "qwen2"},
        vision=_SIGLIP | {"patch_size": 14},
        # With at most two tiles' worth of features, those of larger images are interpolated.
        config={"image_grid_pinpoints": [[28, 28], *_ANYRES], "vision_aspect_ratio": "anyres_max_2"},
        token_ids={"image_token_index": "<image>", "video_token_index": "<video>"},
        tokens=("<image>", "<video>"),
        image_fields={"size": SQUARE, "image_grid_pinpoints": [[28, 28], *_ANYRES]},
        processor_fields={
            "num_image_tokens": 4, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_2",
            "image_token": "<image>", "video_token": "<video>",
        },
        video_processor="LlavaOnevisionVideoProcessor",
        video_fields={"size": SQUARE},
    ),
    "idefics3": Family("Idefics3", "Idefics3Processor", "Idefics3ImageProcessor", **_IDEFICS),
    "smolvlm": Family(
        "SmolVLM", "SmolVLMProcessor", "SmolVLMImageProcessor",
        **_IDEFICS | {"template": templates.SMOLVLM, "tokens": (*_IDEFICS_TOKENS, "<video>")},
    ),
    "mistral3": Family(
        "Mistral3", "PixtralProcessor", "PixtralImageProcessor", templates.MISTRAL3,
        text=TEXT | {"model_type": "mistral", "sliding_window": None},
        vision=_PIXTRAL,
        config={"spatial_merge_size": 2, "tie_word_embeddings": False},
        token_ids={"image_token_index": "[IMG]"},
        tokens=_PIXTRAL_TOKENS,
        image_fields={"size": {"longest_edge": 56}, "patch_size": 7},
        processor_fields={
            "patch_size": 7, "spatial_merge_size": 2, "image_token": "[IMG]", "image_break_token": "[IMG_BREAK]",
            "image_end_token": "[IMG_END]",
        },
    ),
    "pixtral": Family(
        "Llava", "PixtralProcessor", "PixtralImageProcessor", templates.MISTRAL3,
        text=TEXT | {"model_type": "mistral", "sliding_window": None},
        vision=_PIXTRAL | {"patch_size": 14},
        config={"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
        token_ids={"image_token_index": "[IMG]"},
        tokens=_PIXTRAL_TOKENS,
        image_fields={"size": {"longest_edge": 56}, "patch_size": 14},
        processor_fields={
            "patch_size": 14, "image_token": "[IMG]", "image_break_token": "[IMG_BREAK]",
            "image_end_token": "[IMG_END]",
        },
    ),
    "lighton_ocr": Family(
        "LightOnOcr", "LightOnOcrProcessor", "PixtralImageProcessor", templates.LIGHTON_OCR,
        text=TEXT | {"model_type": "qwen3"},
        vision=_PIXTRAL,
        config={"spatial_merge_size": 2, "tie_word_embeddings": True},
        token_ids={"image_token_id": "<|image_pad|>"},
        tokens=("<|image_pad|>", "<|vision_pad|>", "<|vision_end|>"),
        token_attributes={
            "image_token": "<|image_pad|>", "image_break_token": "<|vision_pad|>", "image_end_token": "<|vision_end|>",
        },
        image_fields={"size": {"longest_edge": 56}, "patch_size": 14},
        processor_fields={"patch_size": 7, "spatial_merge_size": 2},
        is_nested=True,
    ),
    "internvl": Family(
        "InternVL", "InternVLProcessor", "GotOcr2ImageProcessor", templates.INTERNVL,
        text=TEXT | {"model_type": "qwen2"},
        vision=VISION,
        config={"image_seq_length": 4, "downsample_ratio": 0.5, "tie_word_embeddings": True},
        token_ids={"image_token_id": "<IMG_CONTEXT>"},
        tokens=("<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
        token_attributes={
            "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        image_fields={"size": SQUARE, "min_patches": 1, "max_patches": 4},
        processor_fields={"image_seq_length": 4},
        video_processor="InternVLVideoProcessor",
        video_fields={"size": SQUARE},
    ),
    "qianfan_ocr": Family(
        "QianfanOCR", "QianfanOCRProcessor", "GotOcr2ImageProcessor",
        templates.INTERNVL.replace("<IMG_CONTEXT>", "<image>"),
        text=TEXT | {"model_type": "qwen3"},
        vision=VISION,
        config={"image_seq_length": 4, "downsample_ratio": 0.5},
        token_ids={"image_token_id": "<IMG_CONTEXT>"},
        tokens=("<img>", "</img>", "<IMG_CONTEXT>", "<image>"),
        token_attributes={
            "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
        },
        image_fields={"size": SQUARE, "min_patches": 1, "max_patches": 4},
        processor_fields={"image_seq_length": 4},
    ),
    "aya_vision": Family(
        "AyaVision", "AyaVisionProcessor", "GotOcr2ImageProcessor", templates.AYA_VISION,
        text=TEXT | {"model_type": "cohere2", "num_hidden_layers": 4, "sliding_window": 16, "logit_scale": 0.3},
        vision=_SIGLIP,
        config={"downsample_factor": 2},
        token_ids={"image_token_index": "<|IMG_PATCH|>"},
        tokens=(
            "<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>",
            "<|SYSTEM_TOKEN|>", "<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "TILE",
            "TILE_GLOBAL",
        ),
        image_fields={"size": SQUARE, "min_patches": 1, "max_patches": 4},
        processor_fields={"patch_size": 7, "img_size": SIDE, "downsample_factor": 2},
    ),
    "cohere2_vision": Family(
        "Cohere2Vision", "Cohere2VisionProcessor", "Cohere2VisionImageProcessor", templates.COHERE2_VISION,
        text=TEXT | {"model_type": "cohere2", "num_hidden_layers": 4, "sliding_window": 16, "logit_scale": 0.3},
        vision=_SIGLIP,
        config={"downsample_factor": 2, "alignment_intermediate_size": 96},
        token_ids={"image_token_id": "<|IMG_PATCH|>"},
        tokens=(
            "<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>",
            "<|SYSTEM_TOKEN|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>",
        ),
        token_attributes={
            "image_token": "<|IMG_PATCH|>", "boi_token": "<|START_OF_IMG|>", "eoi_token": "<|END_OF_IMG|>",
            "img_line_break_token": "<|IMG_LINE_BREAK|>",
        },
        image_fields={"size": SQUARE, "max_patches": 4, "patch_size": 2},
        processor_fields={},
    ),
    "gemma3": Family(
        "Gemma3", "Gemma3Processor", "Gemma3ImageProcessor", templates.GEMMA3,
        text=TEXT | {
            "model_type": "gemma3_text", "num_hidden_layers": 3, "sliding_window": 20, "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        vision=_SIGLIP | {"image_size": 2 * SIDE},
        config={"mm_tokens_per_image": 16, "tie_word_embeddings": False},
        token_ids={
            "image_token_index": "<image_soft_token>", "boi_token_index": "<start_of_image>",
            "eoi_token_index": "<end_of_image>",
        },
        tokens=(
            "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>",
        ),
        token_attributes={
            "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>",
        },
        image_fields={"size": {"height": 2 * SIDE, "width": 2 * SIDE}},
        processor_fields={"image_seq_length": 16},
    ),
    "gemma4": Family("Gemma4", **_GEMMA4),
    "gemma4_large": Family(
        "Gemma4", **_GEMMA4 | {
            "text": TEXT | {
                "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "full_attention"],
                "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "sliding_window": 80,
                "hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision", "enable_moe_block": True,
                "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 48, "pad_token_id": 0,
            },
            "vision": _GEMMA4["vision"] | {"use_clipped_linears": False},
            "config": {"tie_word_embeddings": False, "vision_soft_tokens_per_image": 70},
        },
    ),
    "gemma4_unified": Family(
        "Gemma4Unified", **_GEMMA4 | {
            "processor": "Gemma4UnifiedProcessor",
            "image_processor": "Gemma4UnifiedImageProcessor",
            "text": TEXT | {
                "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "full_attention"],
                "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "sliding_window": 80,
                "use_bidirectional_attention": "vision", "pad_token_id": 0,
            },
            "vision": {
                "patch_size": 4, "pooling_kernel_size": 2, "mm_embed_dim": 32, "mm_posemb_size": 70,
                "output_proj_dims": 32,
            },
            "config": {
                "tie_word_embeddings": False, "vision_soft_tokens_per_image": 70,
                "audio_config": {"audio_embed_dim": 320},
            },
            "feature_extractor": {"feature_size": 320, "audio_samples_per_token": 320},
            "video_processor": "Gemma4UnifiedVideoProcessor",
        },
    ),
    "glm4v": Family("Glm4v", **_GLM | {"text": TEXT | _GLM_ROPE | {"head_dim": None}}),
    "glm46v": Family(
        "Glm46V", **_GLM | {
            "processor": "Glm46VProcessor", "image_processor": "Glm46VImageProcessor",
            "video_processor": "Glm46VVideoProcessor",
            "text": TEXT | _GLM_ROPE | {"model_type": "glm4v_text"},
            "vision": _GLM["vision"] | {"model_type": "glm4v_vision"},
        },
    ),
    "glm4v_moe": Family(
        "Glm4vMoe", **_GLM | {
            "text": TEXT | _GLM_ROPE | {
                "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_group": 1,
                "topk_group": 1, "n_shared_experts": 1,
            },
        },
    ),
    "glm_ocr": Family(
        "GlmOcr", **_GLM | {"text": TEXT | rope(2, 3, 3, partial_rotary_factor=0.5) | {"head_dim": 32}},
    ),
    "kimi_k25": Family(
        "Kimi_K25", "Kimi_K25Processor", "Kimi_K25ImageProcessor", templates.KIMI_K25,
        text=TEXT | {
            "model_type": "deepseek_v3", "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16,
            "qk_rope_head_dim": 8, "head_dim": 8, "qk_nope_head_dim": 24, "v_head_dim": 16, "n_routed_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 1, "n_group": 1,
            "topk_group": 1, "first_k_dense_replace": 1,
        },
        vision=VISION | {"pos_emb_height": 4, "pos_emb_width": 4},
        config={"projection_hidden_size": 32, "tie_word_embeddings": False},
        token_ids={"image_token_id": "<|media_pad|>", "video_token_id": "<|kimi_k25_video_placeholder|>"},
        tokens=(
            "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|media_begin|>",
            "<|media_content|>", "<|media_pad|>", "<|media_end|>", "<|kimi_k25_video_placeholder|>",
        ),
        image_fields={"patch_size": 7, "max_patches": 60, "size": {"max_height": 12, "max_width": 12}},
        processor_fields={},
    ),
    "lfm2_vl": Family("Lfm2Vl", **_LFM2_VL | {"text": TEXT | _CONVOLUTIONS | {"model_type": "lfm2"}}),
    "lfm2_vl_moe": Family(
        "Lfm2Vl", **_LFM2_VL | {
            "text": TEXT | _CONVOLUTIONS | EXPERTS | {"model_type": "lfm2_moe", "num_dense_layers": 1},
        },
    ),
    "lfm3_vl": Family(
        "Lfm3Vl", "Lfm3VlProcessor", "Qwen2VLImageProcessor", templates.QWEN3_VL,
        text=TEXT | _CONVOLUTIONS | {"model_type": "lfm3"},
        vision={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
            "num_key_value_heads": 1, "patch_size": 7,
        },
        config={"projector_hidden_size": 48},
        token_ids=QWEN_IDS,
        tokens=QWEN_TOKENS,
        image_fields=QWEN_PIXELS,
        **QWEN3_VIDEOS,
    ),
    "llama4": Family(
        "Llama4", "Llama4Processor", "Llama4ImageProcessor", templates.LLAMA4,
        text=TEXT | {
            "intermediate_size_mlp": 96, "num_hidden_layers": 4, "attention_chunk_size": 16, "num_local_experts": 4,
            "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "floor_scale": 8, "no_rope_layer_interval": 4,
        },
        vision=VISION | {
            "intermediate_size": 128, "projector_input_dim": 48, "projector_output_dim": 48, "vision_output_dim": 48,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        token_ids={"image_token_index": "<|patch|>"},
        tokens=(
            "<|begin_of_text|>", "<|header_start|>", "<|header_end|>", "<|eot|>", "<|image_start|>", "<|image_end|>",
            "<|image|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>",
        ),
        image_fields={"size": SQUARE, "max_patches": 4},
        processor_fields={"patch_size": 7},
    ),
    "paddleocr_vl": Family(
        "PaddleOCRVL", "PaddleOCRVLProcessor", "PaddleOCRVLImageProcessor", templates.PADDLE_OCR,
        text=TEXT | rope(2, 3, 3),
        vision=VISION | {"spatial_merge_size": 2, "image_size": 2 * SIDE},
        config={"tie_word_embeddings": False},
        token_ids={"image_token_id": "<|IMAGE_PLACEHOLDER|>", "video_token_id": "<|VIDEO_PLACEHOLDER|>"},
        tokens=(
            "<|begin_of_sentence|>", "<|IMAGE_START|>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_END|>",
            "<|VIDEO_PLACEHOLDER|>",
        ),
        token_attributes={"image_token": "<|IMAGE_PLACEHOLDER|>"},
        image_fields={"patch_size": 7, "size": {"shortest_edge": 784, "longest_edge": 3136}},
    ),
    **document_families.FAMILIES,
    **marked_families.FAMILIES,
    **unlisted_families.FAMILIES,
    **qwen_families.FAMILIES,
}  # fmt: skip
