"""The parts of params.json for images and audio, as config.json has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import StartupError

# What belongs to the whole model in config.json, and not to its text model.
_OF_WHOLE = ("dtype", "quantization_config", "tie_word_embeddings")
_AUDIO_TOKEN = 24  # [AUDIO] in all of Mistral's vocabularies that have it


def with_media(params: Mapping[str, Any], text: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the whole model; that of the text model if it is all there is.

    Args:
        text: configuration of the text model.

    Raises:
        StartupError: it has settings that Quire does not support.
        KeyError or others, for `converting`.
    """
    others = params.get("multimodal") or {}
    vision = params.get("vision_encoder") or others.get("vision_encoder_args")
    audio: Mapping[str, Any] = others.get("whisper_model_args") or {}
    if vision and audio:
        raise StartupError("params.json has encoders of both images and audio, which is not supported.")
    if not vision and not audio:
        return text
    part = _with_images(vision) if vision else _with_audio(audio)
    own = {name: value for name, value in text.items() if name not in (*_OF_WHOLE, "architectures")}
    if is_live(part):
        own["model_type"] = "voxtral_realtime_text"
    return {**{name: text[name] for name in _OF_WHOLE if name in text}, **part, "text_config": own}


def is_live(config: Mapping[str, Any]) -> bool:
    """Whether it is the configuration of a model that hears a recording while it writes: Voxtral Realtime."""
    return config.get("model_type") == "voxtral_realtime"


def _with_images(vision: Mapping[str, Any]) -> dict[str, Any]:
    """Mistral Small 3.1 and later join patches and have a norm before the projector; Pixtral 12B has neither."""
    merges, has_norm = vision.get("mm_projector_id") == "patch_merge", vision.get("add_pre_mm_projector_layer_norm")
    if bool(merges) != bool(has_norm):
        raise StartupError(
            "params.json has only one of mm_projector_id: patch_merge and add_pre_mm_projector_layer_norm; models with "
            "both or with neither are supported."
        )
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "patch_size", "image_size",
        "num_channels",
    )  # fmt: skip
    own = {name: vision[name] for name in names if name in vision} | {
        "model_type": "pixtral", "hidden_act": "silu",
        "head_dim": vision["hidden_size"] // vision["num_attention_heads"],
        "rope_parameters": {"rope_type": "axial", "rope_theta": vision.get("rope_theta", 10_000.0)},
    }  # fmt: skip
    found = {
        "vision_config": own, "image_token_index": vision.get("image_token_id", 10), "vision_feature_layer": -1,
        "projector_hidden_act": "gelu", "multimodal_projector_bias": vision.get("adapter_bias", True),
    }  # fmt: skip
    if merges:
        return found | {
            "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
            "spatial_merge_size": vision.get("spatial_merge_size", 2),
        }  # fmt: skip
    return found | {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
        "vision_feature_select_strategy": "full",
    }  # fmt: skip


def _with_audio(whisper: Mapping[str, Any]) -> dict[str, Any]:
    """Voxtral: Whisper's encoder, four of whose rows are an embedding."""
    encoder = whisper["encoder_args"]
    if encoder.get("causal"):
        return _with_live_audio(encoder, whisper)
    if (positions := encoder.get("pos_embed", "sinusoidal")) != "sinusoidal":
        raise StartupError(f"params.json has pos_embed {positions!r} of an encoder that is not causal; expected none.")
    factor = (whisper.get("downsample_args") or {}).get("downsample_factor", 4)
    if encoder["dim"] * factor != encoder["hidden_dim"]:
        raise StartupError(f"params.json has downsample_factor {factor}; expected hidden_dim / dim of the encoder.")
    return {
        "architectures": ["VoxtralForConditionalGeneration"], "model_type": "voxtral",
        "audio_token_id": _AUDIO_TOKEN, "projector_hidden_act": "gelu",
        "audio_config": {
            "model_type": "voxtral_encoder", "hidden_size": encoder["dim"], "intermediate_size": encoder["hidden_dim"],
            "num_hidden_layers": encoder["n_layers"], "num_attention_heads": encoder["n_heads"],
            "num_mel_bins": encoder["audio_encoding_args"]["num_mel_bins"],
            "max_source_positions": encoder.get("max_source_positions") or 1500,
        },
    }  # fmt: skip


def _with_live_audio(encoder: Mapping[str, Any], whisper: Mapping[str, Any]) -> dict[str, Any]:
    """Voxtral Realtime: an encoder built like a text model, with a window."""
    names = {
        "dim": "hidden_size", "hidden_dim": "intermediate_size", "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads", "head_dim": "head_dim", "norm_eps": "rms_norm_eps",
        "sliding_window": "sliding_window",
    }  # fmt: skip
    own = {ours: encoder[name] for name, ours in names.items() if name in encoder} | {
        "model_type": "voxtral_realtime_encoder", "num_mel_bins": encoder["audio_encoding_args"]["num_mel_bins"],
        "rope_parameters": {"rope_type": "default", "rope_theta": encoder.get("rope_theta", 10_000.0)},
    }  # fmt: skip
    return {
        "architectures": ["VoxtralRealtimeForConditionalGeneration"], "model_type": "voxtral_realtime",
        "audio_config": own, "projector_hidden_act": "gelu", "audio_length_per_tok": 8,
        "downsample_factor": (whisper.get("downsample_args") or {}).get("downsample_factor", 4),
    }  # fmt: skip
