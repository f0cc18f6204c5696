"""InternVL as OpenGVLab publishes it (InternVLChatModel), as a configuration in Transformers' layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_svc.config_formats.base import converting
from quire.errors import StartupError
from quire.tokenizer.configuration import read_json, text_of
from quire.tokenizer.vocabulary_files import WHOLE

_CHAT_MODEL = "InternVLChatModel"
_PLACEHOLDER = "<IMG_CONTEXT>"
# What ends answers in the conversations that the models were trained on, whatever their configurations say.
_ENDS = ("<|im_end|>", "<|end|>")
# What belongs to the whole model in both layouts; only the text model's part may have it.
_OF_WHOLE = ("dtype", "torch_dtype", "quantization_config")
_VISION: dict[str, Any] = {  # with OpenGVLab's defaults
    "hidden_size": 3200, "num_hidden_layers": 48, "num_attention_heads": 25, "intermediate_size": 12800,
    "hidden_act": "gelu", "norm_type": "rms_norm", "layer_norm_eps": 1e-6, "image_size": 224, "patch_size": 14,
    "num_channels": 3, "qkv_bias": False, "qk_normalization": True,
}  # fmt: skip
_LIKE_LLAMA = ("internlm2", "internlm3")  # types that Transformers does not know
_OTHER_NAMES = {"qkv_bias": "attention_bias", "qk_normalization": "use_qk_norm"}


def in_transformers_layout(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The configuration of InternVLForConditionalGeneration; those of other models are returned unchanged.

    Args:
        folder: with the tokenizer's files, which alone have the ids of tokens.

    Raises:
        StartupError: something is missing or not supported.
    """
    named = config.get("architectures")
    if not isinstance(named, list) or _CHAT_MODEL not in named:
        return config
    with converting(f"{folder}: config.json"):
        text, vision = config["llm_config"], _VISION | config["vision_config"]
        _check(config, vision)
        tokens, ratio = _added_tokens(folder), config.get("downsample_ratio", 0.5)
        if _PLACEHOLDER not in tokens:
            raise StartupError(
                f"{folder}: the tokenizer's files have no id of {_PLACEHOLDER}, which stands for images."
            )
        own: dict[str, Any] = {"eos_token_id": [tokens[each] for each in _ENDS if each in tokens]}
        if text.get("model_type") in _LIKE_LLAMA:
            own["model_type"] = "llama"
        return {
            **{name: value for name, value in (text | config).items() if name in _OF_WHOLE},
            "architectures": ["InternVLForConditionalGeneration"], "model_type": "internvl",
            "text_config": {name: value for name, value in (text | own).items() if name not in _OF_WHOLE},
            "vision_config": {_OTHER_NAMES.get(name, name): vision[name] for name in _VISION},
            "image_token_id": tokens[_PLACEHOLDER], "downsample_ratio": ratio,
            "image_seq_length": int((vision["image_size"] // vision["patch_size"] * ratio) ** 2),
            "vision_feature_layer": config.get("select_layer", -1),
        }  # fmt: skip


def _check(config: Mapping[str, Any], vision: Mapping[str, Any]) -> None:
    """
    Raises:
        StartupError: an option of the whole model has another value than the supported one.
    """
    supported: dict[str, Any] = {  # and OpenGVLab's default
        "ps_version": ("v2", "v1"), "force_image_size": (vision["image_size"], vision["image_size"]),
        "use_backbone_lora": (0, 0), "use_llm_lora": (0, 0),
    }  # fmt: skip
    for name, (value, default) in supported.items():
        if (found := config.get(name) or default) != value:
            raise StartupError(f"config.json of {_CHAT_MODEL} has {name} {found!r}; only {value!r} is supported.")


def _added_tokens(folder: Path) -> dict[str | None, int]:
    """Text → id, from whichever files have them."""
    numbered = read_json(folder / "tokenizer_config.json").get("added_tokens_decoder") or {}
    whole = read_json(folder / WHOLE).get("added_tokens") or ()
    return {
        **read_json(folder / "added_tokens.json"),
        **{text_of(token): int(number) for number, token in numbered.items()},
        **{token["content"]: token["id"] for token in whole},
    }
