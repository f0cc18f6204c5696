"""Maps architectures to the modules that implement them, which are loaded on demand."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine_svc.models.checks import check_config, check_windows
from engine_svc.models.config import ModelConfig
from engine_svc.models.encoder_config import HeadConfig
from quire.errors import StartupError

if TYPE_CHECKING:
    from engine_svc.media.unlisted import ImageSupport

# Architecture of config.json → module with `config_of(config) -> ModelConfig`.
ARCHITECTURES = {
    "AfmoeForCausalLM": "engine_svc.models.afmoe",
    "ApertusForCausalLM": "engine_svc.models.apertus",
    "AXK1ForCausalLM": "engine_svc.models.axk1",
    "AXK2ForCausalLM": "engine_svc.models.axk2",
    "AquilaForCausalLM": "engine_svc.models.llama",
    "AquilaModel": "engine_svc.models.llama",
    "ArceeForCausalLM": "engine_svc.models.arcee",
    "AriaTextForCausalLM": "engine_svc.models.aria",
    "BaiChuanForCausalLM": "engine_svc.models.baichuan",
    "BaichuanForCausalLM": "engine_svc.models.baichuan",
    "BailingHybridForCausalLM": "engine_svc.models.ling3",
    "BailingMoeForCausalLM": "engine_svc.models.bailing_moe",
    "BailingMoeV2ForCausalLM": "engine_svc.models.bailing_moe",
    "BailingMoeV3ForCausalLM": "engine_svc.models.ling3",
    "BambaForCausalLM": "engine_svc.models.bamba",
    "BeamForCausalLM": "engine_svc.models.beam",
    "BloomForCausalLM": "engine_svc.models.bloom",
    "ChatGLMForConditionalGeneration": "engine_svc.models.chatglm",
    "ChatGLMModel": "engine_svc.models.chatglm",
    "CodeGenForCausalLM": "engine_svc.models.gptj",
    "Cohere2ForCausalLM": "engine_svc.models.cohere",
    "Cohere2MoeForCausalLM": "engine_svc.models.cohere_moe",
    "CohereForCausalLM": "engine_svc.models.cohere",
    "CwmForCausalLM": "engine_svc.models.cwm",
    "DbrxForCausalLM": "engine_svc.models.dbrx",
    "DeciLMForCausalLM": "engine_svc.models.nemotron_nas",
    "DeepseekForCausalLM": "engine_svc.models.deepseek_moe",
    "DeepseekV2ForCausalLM": "engine_svc.models.deepseek",
    "DeepseekV32ForCausalLM": "engine_svc.models.deepseek",
    "DeepseekV3ForCausalLM": "engine_svc.models.deepseek",
    "DeepseekV4ForCausalLM": "engine_svc.models.deepseek_v4",
    "Dots1ForCausalLM": "engine_svc.models.dots",
    "Ernie4_5ForCausalLM": "engine_svc.models.ernie",
    "Ernie4_5_MoeForCausalLM": "engine_svc.models.ernie_moe",
    "Exaone4ForCausalLM": "engine_svc.models.exaone4",
    "ExaoneForCausalLM": "engine_svc.models.exaone",
    "ExaoneMoeForCausalLM": "engine_svc.models.exaone_moe",
    "FalconForCausalLM": "engine_svc.models.falcon",
    "FalconH1ForCausalLM": "engine_svc.models.falcon_h1",
    "FalconMambaForCausalLM": "engine_svc.models.pure_mamba",
    "FlexOlmoForCausalLM": "engine_svc.models.olmoe",
    "FlintForCausalLM": "engine_svc.models.flint",
    "GPT2LMHeadModel": "engine_svc.models.gpt2",
    "GPTBigCodeForCausalLM": "engine_svc.models.gpt2",
    "GPTJForCausalLM": "engine_svc.models.gptj",
    "GPTNeoForCausalLM": "engine_svc.models.gpt_neo",
    "GPTNeoXForCausalLM": "engine_svc.models.gpt_neox",
    "Gemma2ForCausalLM": "engine_svc.models.gemma",
    "Gemma3ForCausalLM": "engine_svc.models.gemma",
    "Gemma3nForCausalLM": "engine_svc.models.gemma3n",
    "Gemma4ForCausalLM": "engine_svc.models.gemma4",
    "Gemma4UnifiedForCausalLM": "engine_svc.models.gemma4",
    "GemmaForCausalLM": "engine_svc.models.gemma",
    "Glm4ForCausalLM": "engine_svc.models.glm",
    "Glm4MoeForCausalLM": "engine_svc.models.glm_moe",
    "Glm4MoeLiteForCausalLM": "engine_svc.models.glm_moe",
    "GlmForCausalLM": "engine_svc.models.glm",
    "GlmMoeDsaForCausalLM": "engine_svc.models.deepseek",
    "GptOssForCausalLM": "engine_svc.models.gpt_oss",
    "GraniteForCausalLM": "engine_svc.models.granite",
    "GraniteMoeForCausalLM": "engine_svc.models.granite_moe",
    "GraniteMoeHybridForCausalLM": "engine_svc.models.granite_hybrid",
    "GraniteMoeSWAForCausalLM": "engine_svc.models.granite_swa",
    "GraniteMoeSharedForCausalLM": "engine_svc.models.granite_moe",
    "GraniteSWAForCausalLM": "engine_svc.models.granite_swa",
    "HYV3ForCausalLM": "engine_svc.models.hy_v3",
    "HYV4ForCausalLM": "engine_svc.models.hy_v4",
    "HeliumForCausalLM": "engine_svc.models.helium",
    "HunYuanDenseV1ForCausalLM": "engine_svc.models.hunyuan",
    "HunYuanMoEV1ForCausalLM": "engine_svc.models.hunyuan_moe",
    "HyperCLOVAXForCausalLM": "engine_svc.models.hyperclovax",
    "InternLM2ForCausalLM": "engine_svc.models.internlm2",
    "InternLM3ForCausalLM": "engine_svc.models.internlm3",
    "InternLMForCausalLM": "engine_svc.models.internlm2",
    "JAISLMHeadModel": "engine_svc.models.jais",
    "Jais2ForCausalLM": "engine_svc.models.jais2",
    "JambaForCausalLM": "engine_svc.models.jamba",
    "JetMoeForCausalLM": "engine_svc.models.jetmoe",
    "KimiLinearForCausalLM": "engine_svc.models.kimi_linear",
    "Kolibri1ForCausalLM": "engine_svc.models.kolibri",
    "LagunaForCausalLM": "engine_svc.models.laguna",
    "LLaMAForCausalLM": "engine_svc.models.llama",
    "Lfm2ForCausalLM": "engine_svc.models.lfm2",
    "Lfm2MoeForCausalLM": "engine_svc.models.lfm2",
    "Lfm3ForCausalLM": "engine_svc.models.lfm3",
    "Llama4ForCausalLM": "engine_svc.models.llama4",
    "LlamaForCausalLM": "engine_svc.models.llama",
    "LongcatFlashForCausalLM": "engine_svc.models.longcat",
    "MPTForCausalLM": "engine_svc.models.mpt",
    "Mamba2ForCausalLM": "engine_svc.models.pure_mamba",
    "MambaForCausalLM": "engine_svc.models.pure_mamba",
    "MellumForCausalLM": "engine_svc.models.mellum",
    "MiMoForCausalLM": "engine_svc.models.qwen2",
    "MiMoV2FlashForCausalLM": "engine_svc.models.mimo",
    "MiniCPM3ForCausalLM": "engine_svc.models.minicpm3",
    "MiniCPMForCausalLM": "engine_svc.models.minicpm",
    "MiniMaxForCausalLM": "engine_svc.models.minimax",
    "MiniMaxM1ForCausalLM": "engine_svc.models.minimax",
    "MiniMaxM2ForCausalLM": "engine_svc.models.minimax_m2",
    "MiniMaxM3VLForCausalLM": "engine_svc.models.minimax_m3",
    "MiniMaxText01ForCausalLM": "engine_svc.models.minimax",
    "Ministral3ForCausalLM": "engine_svc.models.ministral3",
    "MinistralForCausalLM": "engine_svc.models.mistral",
    "Mistral4ForCausalLM": "engine_svc.models.mistral4",
    "MistralForCausalLM": "engine_svc.models.mistral",
    "MixtralForCausalLM": "engine_svc.models.mixtral",
    "MptForCausalLM": "engine_svc.models.mpt",
    "NanoChatForCausalLM": "engine_svc.models.nanochat",
    "NemotronForCausalLM": "engine_svc.models.nemotron",
    "NemotronHForCausalLM": "engine_svc.models.nemotron_h",
    "OPTForCausalLM": "engine_svc.models.opt",
    "Olmo2ForCausalLM": "engine_svc.models.olmo2",
    "Olmo3ForCausalLM": "engine_svc.models.olmo2",
    "OlmoForCausalLM": "engine_svc.models.olmo",
    "OlmoHybridForCausalLM": "engine_svc.models.olmo_hybrid",
    "OlmoeForCausalLM": "engine_svc.models.olmoe",
    "OpenAIGPTLMHeadModel": "engine_svc.models.gpt2",
    "OrionForCausalLM": "engine_svc.models.orion",
    "PanguEmbeddedForCausalLM": "engine_svc.models.pangu",
    "Phi3ForCausalLM": "engine_svc.models.phi3",
    "PhiForCausalLM": "engine_svc.models.phi",
    "PhiMoEForCausalLM": "engine_svc.models.phimoe",
    "PhimoeForCausalLM": "engine_svc.models.phimoe",
    "QWenLMHeadModel": "engine_svc.models.qwen",
    "Qwen2ForCausalLM": "engine_svc.models.qwen2",
    "Qwen2MoeForCausalLM": "engine_svc.models.qwen_moe",
    "Qwen3ForCausalLM": "engine_svc.models.qwen3",
    "Qwen3MoeForCausalLM": "engine_svc.models.qwen_moe",
    "Qwen3NextForCausalLM": "engine_svc.models.qwen3_next",
    "Qwen3_5ForCausalLM": "engine_svc.models.qwen3_next",
    "Qwen3_5MoeForCausalLM": "engine_svc.models.qwen3_next",
    "RWForCausalLM": "engine_svc.models.falcon",
    "RecurrentGemmaForCausalLM": "engine_svc.models.recurrent_gemma",
    "SeedOssForCausalLM": "engine_svc.models.seed_oss",
    "SmolLM3ForCausalLM": "engine_svc.models.smollm3",
    "SolarForCausalLM": "engine_svc.models.solar",
    "SolarOpenForCausalLM": "engine_svc.models.solar_open",
    "StableLMEpochForCausalLM": "engine_svc.models.stablelm",
    "StableLmForCausalLM": "engine_svc.models.stablelm",
    "Starcoder2ForCausalLM": "engine_svc.models.starcoder2",
    "Step3p5ForCausalLM": "engine_svc.models.step3",
    "TeleChat2ForCausalLM": "engine_svc.models.telechat",
    "TeleChatForCausalLM": "engine_svc.models.telechat",
    "TeleFLMForCausalLM": "engine_svc.models.teleflm",
    "TeleChat3ForCausalLM": "engine_svc.models.llama",
    "VaultGemmaForCausalLM": "engine_svc.models.gemma",
    "VoxtralRealtimeForConditionalGeneration": "engine_svc.models.voxtral_realtime",
    "WhisperForConditionalGeneration": "engine_svc.models.whisper",
    "XGLMForCausalLM": "engine_svc.models.opt",
    "XverseForCausalLM": "engine_svc.models.llama",
    "YoutuForCausalLM": "engine_svc.models.youtu",
}


# Families of encoders → module with `config_of(config) -> EncoderConfig` and `head_of(config, kind, num_labels) ->
# HeadConfig`. Their architectures are named after the family and the head: see pooling_form/architecture.py.
ENCODERS = {
    "Bert": "engine_svc.models.bert",
    "Camembert": "engine_svc.models.bert",
    "DistilBert": "engine_svc.models.distilbert",
    "Gte": "engine_svc.models.gte",
    "ModernBert": "engine_svc.models.modernbert",
    "New": "engine_svc.models.gte",
    "NomicBert": "engine_svc.models.gte",
    "Roberta": "engine_svc.models.bert",
    "XLMRoberta": "engine_svc.models.bert",
}

# Vision-language models whose images Quire encodes (see media/encoder.py), and the architectures of their text models.
IMAGE_MODELS = frozenset({
    "AriaForConditionalGeneration",
    "AyaVisionForConditionalGeneration",
    "Cohere2VisionForConditionalGeneration",
    "DeepseekOcr2ForConditionalGeneration",
    "DeepseekVLForConditionalGeneration",
    "Exaone4_5_ForConditionalGeneration",
    "Gemma3ForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Glm46VForConditionalGeneration",
    "Glm4vForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration",
    "GlmOcrForConditionalGeneration",
    "GotOcr2ForConditionalGeneration",
    "Granite4VisionForConditionalGeneration",
    "GraniteDoclingForConditionalGeneration",
    "HunYuanVLForConditionalGeneration",
    "HyperCLOVAXVisionV2ForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "KimiK25ForConditionalGeneration",
    "Kimi_K25ForConditionalGeneration",
    "Lfm2VlForConditionalGeneration",
    "Lfm3VlForConditionalGeneration",
    "LightOnOcrForConditionalGeneration",
    "Llama4ForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaNextVideoForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "MiniCPMOcrForConditionalGeneration",
    "MiniCPMV4_6ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Ovis2ForConditionalGeneration",
    "PaddleOCRVLForConditionalGeneration",
    "QianfanOCRForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5OmniThinkerForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3OmniMoeThinkerForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
    "VideoLlama3ForConditionalGeneration",
    "VipLlavaForConditionalGeneration",
})  # fmt: skip
# Those of them that read videos too.
VIDEO_MODELS = frozenset({
    "Exaone4_5_ForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Glm46VForConditionalGeneration",
    "Glm4vForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration",
    "GlmOcrForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "Lfm3VlForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5OmniThinkerForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3OmniMoeThinkerForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
})  # fmt: skip
# Audio-language models whose audio Quire encodes (see media/audio.py).
AUDIO_MODELS = frozenset({
    "AudioFlamingo3ForConditionalGeneration",
    "Gemma3nForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "GlmAsrForConditionalGeneration",
    "GraniteSpeechForConditionalGeneration",
    "Qwen2AudioForConditionalGeneration",
    "Qwen2_5OmniThinkerForConditionalGeneration",
    "Qwen3ASRForConditionalGeneration",
    "Qwen3OmniMoeThinkerForConditionalGeneration",
    "VoxtralForConditionalGeneration",
    "VoxtralRealtimeForConditionalGeneration",
    "WhisperForConditionalGeneration",
})  # fmt: skip
# Those of them that hear a recording while they write (see ModelFacts.frames_per_token).
LIVE_AUDIO_MODELS = frozenset({"VoxtralRealtimeForConditionalGeneration"})
# Those of them of which only some hear: the part of the configuration that those have.
_HEARING_PARTS = {
    "Gemma4ForConditionalGeneration": "audio_config", "Gemma4UnifiedForConditionalGeneration": "audio_config",
}  # fmt: skip
TEXT_TYPES = {
    "aria_text": "AriaTextForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "deepseek_ocr2_text": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "falcon": "FalconForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "gemma4_unified_text": "Gemma4UnifiedForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM",
    "glm4v_text": "Glm4ForCausalLM",
    "glm_ocr_text": "Glm4ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "granite4_vision_text": "GraniteForCausalLM",
    "granite_docling_text": "GraniteForCausalLM",
    "hunyuan_vl": "HunYuanDenseV1ForCausalLM",  # of configurations whose text model has no part of its own
    "hunyuan_vl_text": "HunYuanDenseV1ForCausalLM",
    "hyperclovax": "HyperCLOVAXForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "lfm3": "Lfm3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "paddleocr_vl_text": "Ernie4_5ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_5_omni_text": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_omni_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "voxtral_realtime_text": "VoxtralRealtimeForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
}
# Text models whose types Transformers does not know; it takes their configurations for Llama's.
LIKE_LLAMA = ("InternLM2ForCausalLM", "InternLM3ForCausalLM")
# Fields that the configuration of a type of text model does not have, although its layers are another family's.
_IMPLIED = {
    "glm4v_text": {"attention_bias": True}, "glm_ocr_text": {"attention_bias": False},
    "qwen3_vl_moe_text": {"norm_topk_prob": True},
}  # fmt: skip
_SPATIAL_KINDS = 4  # of Granite 4 Vision's features: one for each corner of two by two patches


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the text model alone, if it is one of several parts; else the configuration itself."""
    return _text_part_of_whole(config) if takes_media(config) else config


def takes_media(config: Mapping[str, Any]) -> bool:
    """Whether it is a model whose images, videos or audio Quire encodes."""
    return takes_images(config) or takes_audio(config)


def takes_images(config: Mapping[str, Any]) -> bool:
    """Whether it is a vision-language model whose images Quire encodes."""
    listed = any(name in IMAGE_MODELS for name in config.get("architectures") or ())
    return listed or (_is_unlisted(config) and not image_obstacle(config))


def _is_unlisted(config: Mapping[str, Any]) -> bool:
    """Whether it is a model with an image encoder that is not listed above."""
    names = config.get("architectures") or ()
    listed = any(name in listing for name in names for listing in (ARCHITECTURES, IMAGE_MODELS, AUDIO_MODELS))
    return bool(names and config.get("vision_config")) and not listed


def image_obstacle(config: Mapping[str, Any]) -> str:
    """Why Quire does not encode the images of a model that is not listed; empty if it does, or for other models."""
    return _image_support(config).obstacle if _is_unlisted(config) else ""


def _image_support(config: Mapping[str, Any]) -> ImageSupport:
    from engine_svc.media.unlisted import image_support  # imports Transformers, which most models do not need

    return image_support(config)


def takes_audio(config: Mapping[str, Any]) -> bool:
    """Whether it is an audio-language model whose audio Quire encodes."""
    names = [name for name in config.get("architectures") or () if name in AUDIO_MODELS]
    return any(name not in _HEARING_PARTS or config.get(_HEARING_PARTS[name]) for name in names)


def takes_videos(config: Mapping[str, Any]) -> bool:
    """Whether it is a vision-language model whose videos Quire encodes."""
    return any(name in VIDEO_MODELS for name in config.get("architectures") or ())


def _text_part_of_whole(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text model's configuration, completed by Transformers: published ones leave out fields with default values.

    Raises:
        StartupError: Transformers does not accept the configuration.
    """
    import transformers  # takes a second, and most models do not need it

    if "thinker_config" in config:
        raise unsupported(
            config, "it is stored as Qwen's own package has it; take the one in Transformers' layout, named …-hf"
        )
    try:
        whole = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    except KeyError as error:
        raise StartupError(f"config.json has no model_type that Transformers knows: {error}.") from error
    except Exception as error:  # configuration classes raise exceptions of many kinds
        raise StartupError(f"Transformers does not accept the model's configuration: {error}") from error
    text = whole.get_text_config()
    if text.model_type == "gemma3_text" and whole.model_type != "gemma3":  # whose tokens of images attend both ways
        raise unsupported(config, "its text model is Gemma 3's, which is supported with Gemma 3's own images only")
    given = {field: value for field, value in text.to_dict().items() if value is not None}
    own = [name for name in text.architectures or () if name in LIKE_LLAMA]
    found = own[0] if own else TEXT_TYPES.get(text.model_type) or _usual_architecture(text.model_type)
    if (layers := _feature_layers(whole, text)) is not None:
        given["feature_layers"] = layers
    is_tied = config.get("tie_word_embeddings", getattr(whole, "tie_word_embeddings", False))
    implied = _IMPLIED.get(text.model_type, {})
    others = _image_support(config).modules if _is_unlisted(config) else ()
    return {
        **config, **given, **implied, "tie_word_embeddings": is_tied, "architectures": [found],
        "modules_beside_text": others,
    }  # fmt: skip


def _usual_architecture(text_type: str) -> str:
    """That of models which are a text model of this type alone; the type itself if there are none."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(text_type, text_type)


def _feature_layers(whole: Any, text: Any) -> tuple[int, ...] | None:
    """The layers before which the text model adds features of images, for models that say so (Granite 4 Vision).

    Raises:
        StartupError: there are no such layers, or two kinds of features are for the same one.
    """
    if not hasattr(whole, "deepstack_layer_map"):
        return None
    spatial = whole.spatial_target_layers
    layers = (*(layer for _, layer in whole.deepstack_layer_map or ()), *spatial)
    if not whole.deepstack_layer_map or len(spatial) > _SPATIAL_KINDS or len({*layers}) < len(layers):
        raise StartupError(
            f"config.json: deepstack_layer_map is {whole.deepstack_layer_map} and spatial_target_layers is {spatial}; "
            f"expected at least one pair of layers, and up to {_SPATIAL_KINDS} layers, all of them different."
        )
    if not all(0 <= layer < text.num_hidden_layers for layer in layers):
        raise StartupError(f"Images are added before layers {layers}, but the model has {text.num_hidden_layers}.")
    return layers


def is_ours(config: Mapping[str, Any]) -> bool:
    """Whether the model's family is implemented in this package."""
    return any(name in ARCHITECTURES for name in text_part(config).get("architectures") or ())


def unsupported(config: Mapping[str, Any], reason: str) -> StartupError:
    """The error to raise for a model that cannot be run."""
    asked = ", ".join(config.get("architectures") or ()) or "none"
    return StartupError(
        f"The model's architecture ({asked}) is not supported: {reason}. docs/models.md lists what is supported."
    )


def config_for(config: Mapping[str, Any]) -> ModelConfig:
    """The model's shape, read from config.json by its family's module.

    Raises:
        StartupError: the architecture is not supported, or config.json lacks a field.
    """
    name = next((name for name in config.get("architectures") or () if name in ARCHITECTURES), None)
    if name is None:
        raise unsupported(config, "Quire has no code of its own for it, which --model-impl quire requires")
    return read_config(ARCHITECTURES[name], {**config, "architectures": [name]})


def read_config(module: str, config: Mapping[str, Any]) -> ModelConfig:
    """The model's shape, read from config.json by a family's module; the first architecture must be of that family.

    Raises:
        StartupError: config.json lacks a field, or has an invalid value.
    """
    name = config["architectures"][0]
    try:
        result: ModelConfig = importlib.import_module(module).config_of(config)
    except KeyError as error:
        raise StartupError(f"config.json lacks {error}, which {name} needs.") from error
    except (TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError) as error:
        raise StartupError(f"config.json has an invalid value for {name}: {error}.") from error
    check_config(result, config.get("mamba_hidden_act") or config.get("hidden_act") or "silu")
    check_windows(result, config.get("sliding_windows"))
    others = (f"{name}." for name in config.get("modules_beside_text") or ())
    return replace(result, ignored_names=(*result.ignored_names, *others))


def head_reader(family: str) -> Callable[[Mapping[str, Any], str, int], HeadConfig]:
    """The function that reads the head of a family's models: (config, kind, num_labels) → HeadConfig."""
    found: Callable[[Mapping[str, Any], str, int], HeadConfig] = importlib.import_module(
        ENCODERS.get(family, "engine_svc.models.decoder_heads")
    ).head_of
    return found
