"""The families: classes and configurations in Transformers, and what their tokenizers and processors have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.vision_models import templates

# Tiles of four or sixteen patches, so that images of 30 to 60 pixels have 4 to 40 tokens.
_SIDE = 28
_SQUARE = {"height": _SIDE, "width": _SIDE}

_TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": _SIDE,
    "patch_size": 7,
}  # fmt: skip
_QWEN_VISION: dict[str, Any] = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 7, "out_hidden_size": 64,
}  # fmt: skip
_QWEN_PIXELS: dict[str, Any] = {
    "patch_size": 7, "size": {"shortest_edge": 784, "longest_edge": 3136},  # areas
}  # fmt: skip
_QWEN2_VIDEOS: dict[str, Any] = {
    "video_processor": "Qwen2VLVideoProcessor", "video_fields": {
        "patch_size": 7, "size": {"shortest_edge": 784, "longest_edge": 9000}, "cap_pixels_per_frame": False,
    },
}  # fmt: skip
_QWEN3_VIDEOS: dict[str, Any] = {
    "video_processor": "Qwen3VLVideoProcessor",
    "video_fields": {
        "patch_size": 7, "size": {"shortest_edge": 784, "longest_edge": 12000}, "cap_pixels_per_frame": False,
    },
}  # fmt: skip


def _rope(*section: int, **fields: Any) -> dict[str, Any]:
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
    token_ids: Mapping[str, str] = field(default_factory=lambda: {"image_token_index": "<image>"})
    tokens: tuple[str, ...] = ("<image>",)  # special ones, besides those of ChatML
    token_attributes: Mapping[str, str] = field(default_factory=dict)  # that the tokenizer has
    processor_fields: Mapping[str, Any] | None = None  # None: there is no processor_config.json
    feature_extractor: Mapping[str, Any] | None = None  # for audio, in processor_config.json
    video_processor: str = ""  # empty if it reads no videos
    video_fields: Mapping[str, Any] = field(default_factory=dict)
    is_nested: bool = False  # processor_config.json includes what other folders have in preprocessor_config.json
    is_flat: bool = False  # config.json has the text model's fields at its top level


_CLIP: dict[str, Any] = _VISION | {"model_type": "clip_vision_model"}
_SIGLIP: dict[str, Any] = _VISION | {"model_type": "siglip_vision_model", "vision_use_head": False}
_PIXTRAL: dict[str, Any] = _VISION | {"model_type": "pixtral", "image_size": 56, "head_dim": 16}
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
_QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_QWEN_IDS = {
    "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>", "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}  # fmt: skip
_IDEFICS_TOKENS = (
    "<|begin_of_text|>", "<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)  # fmt: skip
_IDEFICS: dict[str, Any] = {
    "template": templates.IDEFICS3,
    "text": _TEXT | {"model_type": "llama"},
    "vision": _VISION,
    "config": {"scale_factor": 2},
    "token_ids": {"image_token_id": "<image>"},
    "tokens": _IDEFICS_TOKENS,
    "image_fields": {"size": {"longest_edge": 2 * _SIDE}, "max_image_size": {"longest_edge": _SIDE}},
    "processor_fields": {"image_seq_len": 4},
}

_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
# Layers of the gated delta rule, and attention that rotates a quarter of each head.
_DELTA_TEXT: dict[str, Any] = _TEXT | _rope(3, 3, 2, mrope_interleaved=True, partial_rotary_factor=0.5) | {
    "num_hidden_layers": 4, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
_QWEN3_5: dict[str, Any] = {
    "processor": "Qwen3VLProcessor",
    "image_processor": "Qwen2VLImageProcessor",
    "template": templates.QWEN3_VL,
    "vision": _QWEN_VISION | {"num_position_embeddings": 16},
    "token_ids": _QWEN_IDS,
    "tokens": _QWEN_TOKENS,
    "image_fields": _QWEN_PIXELS,
    **_QWEN3_VIDEOS,
}

_GLM_ROPE = _rope(1, 2, 1, partial_rotary_factor=0.5)
_GLM: dict[str, Any] = {
    "processor": "Glm4vProcessor",
    "image_processor": "Glm4vImageProcessor",
    "template": templates.GLM4V,
    "vision": _QWEN_VISION | {"intermediate_size": 96, "image_size": _SIDE},
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
    "text": _TEXT | {
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

FAMILIES: dict[str, Family] = {
    "llava": Family(
        "Llava", "LlavaProcessor", "CLIPImageProcessor", templates.LLAVA,
        text=_TEXT | {"model_type": "llama"},
        vision=_CLIP,
        config={"vision_feature_layer": -2, "vision_feature_select_strategy": "default"},
        image_fields={"size": {"shortest_edge": _SIDE}, "crop_size": _SQUARE},
        processor_fields={
            "patch_size": 7, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default",
            "image_token": "<image>",
        },
    ),
    "vipllava": Family(
        "VipLlava", "LlavaProcessor", "CLIPImageProcessor", templates.VIPLLAVA,
        text=_TEXT | {"model_type": "llama"},
        vision=_CLIP | {"num_hidden_layers": 3},
        config={"vision_feature_layer": [-2, -3, 1]},
        image_fields={"size": {"shortest_edge": _SIDE}, "crop_size": _SQUARE},
        processor_fields={
            "patch_size": 7, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default",
            "image_token": "<image>",
        },
    ),
    "llava_next": Family(
        "LlavaNext", "LlavaNextProcessor", "LlavaNextImageProcessor", templates.LLAVA_NEXT,
        text=_TEXT | {"model_type": "mistral", "sliding_window": None},
        vision=_CLIP | {"patch_size": 14},
        config={"vision_feature_layer": -2, "image_grid_pinpoints": _ANYRES},
        image_fields={"size": {"shortest_edge": _SIDE}, "crop_size": _SQUARE, "image_grid_pinpoints": _ANYRES},
        processor_fields={
            "patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default",
            "image_token": "<image>",
        },
    ),
    "llava_onevision": Family(
        "LlavaOnevision", "LlavaOnevisionProcessor", "LlavaOnevisionImageProcessor", templates.LLAVA_ONEVISION,
        text=_TEXT | {"model_type": "qwen2"},
        vision=_SIGLIP | {"patch_size": 14},
        # With at most two tiles' worth of features, those of larger images are interpolated.
        config={"image_grid_pinpoints": [[28, 28], *_ANYRES], "vision_aspect_ratio": "anyres_max_2"},
        token_ids={"image_token_index": "<image>", "video_token_index": "<video>"},
        tokens=("<image>", "<video>"),
        image_fields={"size": _SQUARE, "image_grid_pinpoints": [[28, 28], *_ANYRES]},
        processor_fields={
            "num_image_tokens": 4, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_2",
            "image_token": "<image>", "video_token": "<video>",
        },
        video_processor="LlavaOnevisionVideoProcessor",
        video_fields={"size": _SQUARE},
    ),
    "idefics3": Family("Idefics3", "Idefics3Processor", "Idefics3ImageProcessor", **_IDEFICS),
    "smolvlm": Family(
        "SmolVLM", "SmolVLMProcessor", "SmolVLMImageProcessor",
        **_IDEFICS | {"template": templates.SMOLVLM, "tokens": (*_IDEFICS_TOKENS, "<video>")},
    ),
    "mistral3": Family(
        "Mistral3", "PixtralProcessor", "PixtralImageProcessor", templates.MISTRAL3,
        text=_TEXT | {"model_type": "mistral", "sliding_window": None},
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
        text=_TEXT | {"model_type": "mistral", "sliding_window": None},
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
        text=_TEXT | {"model_type": "qwen3"},
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
        text=_TEXT | {"model_type": "qwen2"},
        vision=_VISION,
        config={"image_seq_length": 4, "downsample_ratio": 0.5, "tie_word_embeddings": True},
        token_ids={"image_token_id": "<IMG_CONTEXT>"},
        tokens=("<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
        token_attributes={
            "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        image_fields={"size": _SQUARE, "min_patches": 1, "max_patches": 4},
        processor_fields={"image_seq_length": 4},
        video_processor="InternVLVideoProcessor",
        video_fields={"size": _SQUARE},
    ),
    "qianfan_ocr": Family(
        "QianfanOCR", "QianfanOCRProcessor", "GotOcr2ImageProcessor",
        templates.INTERNVL.replace("<IMG_CONTEXT>", "<image>"),
        text=_TEXT | {"model_type": "qwen3"},
        vision=_VISION,
        config={"image_seq_length": 4, "downsample_ratio": 0.5},
        token_ids={"image_token_id": "<IMG_CONTEXT>"},
        tokens=("<img>", "</img>", "<IMG_CONTEXT>", "<image>"),
        token_attributes={
            "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
        },
        image_fields={"size": _SQUARE, "min_patches": 1, "max_patches": 4},
        processor_fields={"image_seq_length": 4},
    ),
    "aya_vision": Family(
        "AyaVision", "AyaVisionProcessor", "GotOcr2ImageProcessor", templates.AYA_VISION,
        text=_TEXT | {"model_type": "cohere2", "num_hidden_layers": 4, "sliding_window": 16, "logit_scale": 0.3},
        vision=_SIGLIP,
        config={"downsample_factor": 2},
        token_ids={"image_token_index": "<|IMG_PATCH|>"},
        tokens=(
            "<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>",
            "<|SYSTEM_TOKEN|>", "<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "TILE",
            "TILE_GLOBAL",
        ),
        image_fields={"size": _SQUARE, "min_patches": 1, "max_patches": 4},
        processor_fields={"patch_size": 7, "img_size": _SIDE, "downsample_factor": 2},
    ),
    "gemma3": Family(
        "Gemma3", "Gemma3Processor", "Gemma3ImageProcessor", templates.GEMMA3,
        text=_TEXT | {
            "model_type": "gemma3_text", "num_hidden_layers": 3, "sliding_window": 20, "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        vision=_SIGLIP | {"image_size": 2 * _SIDE},
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
        image_fields={"size": {"height": 2 * _SIDE, "width": 2 * _SIDE}},
        processor_fields={"image_seq_length": 16},
    ),
    "gemma4": Family("Gemma4", **_GEMMA4),
    "gemma4_large": Family(
        "Gemma4", **_GEMMA4 | {
            "text": _TEXT | {
                "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "full_attention"],
                "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "sliding_window": 80,
                "hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision", "enable_moe_block": True,
                "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 48, "pad_token_id": 0,
            },
            "vision": _GEMMA4["vision"] | {"use_clipped_linears": False},
            "config": {"tie_word_embeddings": False, "vision_soft_tokens_per_image": 70},
        },
    ),
    "glm4v": Family("Glm4v", **_GLM | {"text": _TEXT | _GLM_ROPE | {"head_dim": None}}),
    "glm46v": Family(
        "Glm46V", **_GLM | {
            "processor": "Glm46VProcessor", "image_processor": "Glm46VImageProcessor",
            "video_processor": "Glm46VVideoProcessor",
            "text": _TEXT | _GLM_ROPE | {"model_type": "glm4v_text"},
            "vision": _GLM["vision"] | {"model_type": "glm4v_vision"},
        },
    ),
    "glm4v_moe": Family(
        "Glm4vMoe", **_GLM | {
            "text": _TEXT | _GLM_ROPE | {
                "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_group": 1,
                "topk_group": 1, "n_shared_experts": 1,
            },
        },
    ),
    "glm_ocr": Family(
        "GlmOcr", **_GLM | {"text": _TEXT | _rope(2, 3, 3, partial_rotary_factor=0.5) | {"head_dim": 32}},
    ),
    "paddleocr_vl": Family(
        "PaddleOCRVL", "PaddleOCRVLProcessor", "PaddleOCRVLImageProcessor", templates.PADDLE_OCR,
        text=_TEXT | _rope(2, 3, 3),
        vision=_VISION | {"spatial_merge_size": 2, "image_size": 2 * _SIDE},
        config={"tie_word_embeddings": False},
        token_ids={"image_token_id": "<|IMAGE_PLACEHOLDER|>", "video_token_id": "<|VIDEO_PLACEHOLDER|>"},
        tokens=(
            "<|begin_of_sentence|>", "<|IMAGE_START|>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_END|>",
            "<|VIDEO_PLACEHOLDER|>",
        ),
        token_attributes={"image_token": "<|IMAGE_PLACEHOLDER|>"},
        image_fields={"patch_size": 7, "size": {"shortest_edge": 784, "longest_edge": 3136}},
    ),
    "qwen2_vl": Family(
        "Qwen2VL", "Qwen2VLProcessor", "Qwen2VLImageProcessor", templates.QWEN2_VL,
        text=_TEXT | _rope(2, 3, 3),
        vision={"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 7},
        config={"tie_word_embeddings": True},
        token_ids=_QWEN_IDS,
        tokens=_QWEN_TOKENS,
        image_fields=_QWEN_PIXELS,
        **_QWEN2_VIDEOS,
        is_flat=True,
    ),
    "qwen2_5_vl": Family(
        "Qwen2_5_VL", "Qwen2_5_VLProcessor", "Qwen2VLImageProcessor", templates.QWEN2_VL,
        text=_TEXT | _rope(2, 3, 3),
        vision=_QWEN_VISION | {"window_size": 28, "fullatt_block_indexes": [1], "tokens_per_second": 1},
        token_ids=_QWEN_IDS,
        tokens=_QWEN_TOKENS,
        image_fields=_QWEN_PIXELS,
        **_QWEN2_VIDEOS,
        is_flat=True,
    ),
    "exaone4_5": Family(
        "Exaone4_5_", "Exaone4_5_Processor", "Qwen2VLImageProcessor", templates.QWEN2_VL,
        text=_TEXT | {"model_type": "exaone4", "num_hidden_layers": 4, "sliding_window": 16},
        vision=_QWEN_VISION | {
            "window_size": 28, "fullatt_block_indexes": [1], "num_heads": 4, "num_key_value_heads": 2,
        },
        token_ids=_QWEN_IDS,
        tokens=_QWEN_TOKENS,
        image_fields=_QWEN_PIXELS,
        **_QWEN2_VIDEOS,
    ),
    "qwen3_vl": Family(
        "Qwen3VL", "Qwen3VLProcessor", "Qwen2VLImageProcessor", templates.QWEN3_VL,
        text=_TEXT | _rope(4, 2, 2, mrope_interleaved=True) | {"num_hidden_layers": 3},  # more than deepstack layers
        vision=_QWEN_VISION | {"depth": 3, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16},
        token_ids=_QWEN_IDS,
        tokens=_QWEN_TOKENS,
        image_fields=_QWEN_PIXELS,
        **_QWEN3_VIDEOS,
    ),
    "qwen3_vl_moe": Family(
        "Qwen3VLMoe", "Qwen3VLProcessor", "Qwen2VLImageProcessor", templates.QWEN3_VL,
        text=_TEXT | _EXPERTS | _rope(4, 2, 2, mrope_interleaved=True) | {"num_hidden_layers": 3},
        vision=_QWEN_VISION | {"depth": 3, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16},
        token_ids=_QWEN_IDS,
        tokens=_QWEN_TOKENS,
        image_fields=_QWEN_PIXELS,
        **_QWEN3_VIDEOS,
    ),
    "qwen3_5": Family("Qwen3_5", **_QWEN3_5 | {"text": _DELTA_TEXT}),
    "qwen3_5_moe": Family(
        "Qwen3_5Moe", **_QWEN3_5 | {"text": _DELTA_TEXT | _EXPERTS | {"shared_expert_intermediate_size": 32}}
    ),
}  # fmt: skip
