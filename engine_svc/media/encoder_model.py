"""Loads the parts of a model that turn images, videos or audio into embeddings, by the Transformers library."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from engine_svc.load_reports import without_reports
from engine_svc.media.gemma3n import Gemma3nHearing
from quire.errors import StartupError
from quire.media import MediaKind

# Transformers changes torch's defaults and its initializers for the whole process while it makes a model.
_ALONE = threading.Lock()
# Names of the text model within the whole model.
TEXT_MODELS = ("language_model", "text_model", "decoder")
_OF_TEXT = re.compile(r"\b(language_model|text_model|decoder|lm_head|proj_out)\.")


def load_encoder(
    folder: Path, raw: Mapping[str, Any], dtype: torch.dtype, device: torch.device,
    tensors: Mapping[str, torch.Tensor] | None, seed: int | None = None,
) -> Any:  # fmt: skip
    """The model without its text model.

    Args:
        raw: config.json, with the user's changes.
        tensors: the checkpoint's tensors; None means that Transformers reads them itself.
        seed: of random weights; None for those of the checkpoint.

    Raises:
        StartupError: Transformers cannot load these parts, or the checkpoint lacks some of their weights.
    """
    config = _without_text(raw)
    transformers.utils.logging.disable_progress_bar()
    with _ALONE, without_reports():
        model: Any = _load(folder, config, dtype, tensors) if seed is None else _random(config, dtype, seed)
    for name in TEXT_MODELS:
        if hasattr(model, name):
            delattr(model, name)
    return model.eval().to(device)


def bare_model(raw: Mapping[str, Any]) -> Any:
    """The model without weights and without the layers of its text model, on torch's meta device.

    Raises: various exceptions if Transformers cannot make it.
    """
    config = _without_text(raw)
    with _ALONE, without_reports(), torch.device("meta"):
        return _class_of(config)._from_config(config).base_model.eval()


def _without_text(raw: Mapping[str, Any]) -> Any:
    """The configuration of a model whose text model has neither layers nor a vocabulary worth mentioning.

    Raises:
        StartupError: the model is not supported.
    """
    config = transformers.CONFIG_MAPPING[raw["model_type"]].from_dict(dict(raw))
    text = config.get_text_config()
    vision: Any = getattr(config, "vision_config", None)
    deep = getattr(vision, "deepstack_visual_indexes", None) or ()
    if len(deep) >= text.num_hidden_layers:  # the last layer may compute only some rows
        raise StartupError(f"Images are added after {len(deep)} of {text.num_hidden_layers} layers; Quire needs fewer.")
    layers = "decoder_layers" if config.is_encoder_decoder else "num_hidden_layers"
    setattr(text, layers, 0)
    text.vocab_size, text.pad_token_id = 1, None
    if hasattr(text, "hidden_size_per_layer_input"):
        text.hidden_size_per_layer_input = 0  # else it would have, and read, an embedding of its own for each token
    if getattr(text, "layer_types", None):
        text.layer_types = []
    if getattr(vision, "tokenize_function", None) == "gumbel_argmax":
        raise StartupError("The image encoder draws at random (tokenize_function gumbel_argmax), which Quire does not.")
    if config.model_type == "aria" and config.vision_feature_layer != -1:
        raise StartupError(
            f"config.json: vision_feature_layer is {config.vision_feature_layer}; for Aria, only -1 is supported."
        )
    if hasattr(vision, "vision_use_head"):
        vision.vision_use_head = False  # it makes one vector of a whole image, which no text model takes
    config.quantization_config = text.quantization_config = None  # of the text model, wherever it is written
    return config


def _load(
    folder: Path, config: Any, dtype: torch.dtype, tensors: Mapping[str, torch.Tensor] | None
) -> transformers.PreTrainedModel:
    """
    Raises:
        StartupError: see load_encoder.
    """
    try:
        model, told = _class_of(config).from_pretrained(
            folder if tensors is None else None, config=config, dtype=dtype, use_safetensors=True,
            local_files_only=True, state_dict=tensors, output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise StartupError(f"Transformers cannot load the encoder in {folder}: {error}") from error
    wrong = [*told["missing_keys"], *(name for name, *_ in told["mismatched_keys"])]
    if wrong := sorted(name for name in wrong if not _OF_TEXT.search(name)):
        raise StartupError(
            f"{folder}: the checkpoint lacks weights of the encoder, or has them in another shape: "
            f"{', '.join(wrong[:5])} ({len(wrong)} in all). Encoders with quantized weights are not supported; "
            f"--limit-mm-per-prompt {','.join(f'{kind}=0' for kind in MediaKind)} serves the model for text only."
        )
    return model.base_model


def _random(config: Any, dtype: torch.dtype, seed: int) -> transformers.PreTrainedModel:
    """A model with random weights, for benchmarks of shapes: the same on all ranks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _class_of(config)._from_config(config, dtype=dtype).base_model


def _class_of(config: Any) -> Any:
    """The class of the whole model, or of what is used of it. Some checkpoints name one that only their code has."""
    if config.model_type == "gemma3n":
        return Gemma3nHearing
    found = getattr(transformers, config.architectures[0], None)
    return transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)] if found is None else found
