"""Loads the encoder of a model that reads images, videos or audio, if these are wanted."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine_svc.loader.formats.base import CheckpointFormat, LoadFormat
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.formats.whole import all_tensors
from engine_svc.loader.internvl import encoder_tensors, is_published
from engine_svc.loader.names import is_of_text
from engine_svc.models.registry import LIVE_AUDIO_MODELS, takes_audio, takes_images, takes_media, takes_videos
from quire.errors import StartupError
from quire.media import MediaKind
from quire.options.engine import EngineOptions
from quire.options.multimodal import most
from quire.retrievers import PREFIX
from quire.tokenizer import tekken

if TYPE_CHECKING:
    from engine_svc.media.base import MediaEncoder

logger = logging.getLogger(__name__)

_OUTPUT_LAYERS = ("lm_head.", "language_model.output.")  # the second is InternLM's


def with_head_told(folder: Path, config: dict[str, Any], options: EngineOptions) -> dict[str, Any]:
    """The configuration of a model that reads media with whether the embedding is also the output layer.

    Published ones leave that out or are wrong about it; as in Transformers, what the checkpoint has decides. Other
    models' configurations are returned unchanged.

    Raises:
        StartupError: the checkpoint's files are missing or broken.
    """
    if not takes_media(config):
        return config
    source = create_format(folder, options.load)
    if not isinstance(source, CheckpointFormat):
        return config
    has_head = any(layer in name for name in source.names() for layer in _OUTPUT_LAYERS)
    return {**config, "tie_word_embeddings": not has_head}


def with_delay_told(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a model that hears a recording while it writes, with the delay that its prompts have.

    That is in tekken.json. Other models' configurations are returned unchanged.

    Raises:
        StartupError: the file cannot be read, or says nothing about it.
    """
    if not _is_live(config):
        return config
    file = folder / tekken.FILE
    try:
        delay = tekken.delay_tokens(json.loads(file.read_bytes())["audio"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StartupError(
            f"{file} cannot be read: {type(error).__name__}: {error}. The model needs it, with transcription_delay_ms "
            "and frame_rate of its audio."
        ) from error
    return {**config, "default_num_delay_tokens": delay}


def load_encoder_of(
    folder: Path, config: Mapping[str, Any], options: EngineOptions, dtype: torch.dtype, device: torch.device
) -> MediaEncoder | None:
    """The model's encoder; None if the model reads text only, or is served for text only.

    Args:
        config: config.json, with the user's changes.

    Raises:
        StartupError: it cannot be loaded.
    """
    kinds = _kinds(config, options.images.limit_mm_per_prompt)
    if not kinds:
        if _is_live(config):
            raise StartupError("--limit-mm-per-prompt audio=0: the model does nothing without audio. Leave it out.")
        return None
    source = create_format(folder, options.load)
    if not source.is_random and not isinstance(source, CheckpointFormat):
        logger.warning(
            "images, videos and audio are refused: --load-format %s has the weights of the text model only",
            options.load.load_format,
        )
        return None
    # Imported late: they import Transformers, which most models do not need.
    from engine_svc.media.audio import AudioEncoder
    from engine_svc.media.encoder import ImageEncoder
    from engine_svc.media.encoder_model import load_encoder
    from engine_svc.media.omni import OmniEncoder

    seed = (options.generation.seed or 0) if source.is_random else None
    tensors = None if source.is_random else _tensors(source, config["model_type"])
    model = load_encoder(folder, config, dtype, device, tensors, seed)
    hears, sees = MediaKind.AUDIO in kinds, bool(kinds - {MediaKind.AUDIO})
    encoder = OmniEncoder if hears and sees else AudioEncoder if hears else ImageEncoder
    return encoder(model, kinds, dtype, device)


def _is_live(config: Mapping[str, Any]) -> bool:
    return any(name in LIVE_AUDIO_MODELS for name in config.get("architectures") or ())


def _tensors(source: LoadFormat, model_type: str) -> dict[str, torch.Tensor] | None:
    """The encoder's tensors, in Transformers' layout; None if Transformers reads them itself.

    Raises:
        StartupError: a file is missing or broken.
    """
    if model_type == "internvl" and isinstance(source, CheckpointFormat) and is_published(source):
        return encoder_tensors(source)
    return all_tensors(source, is_of_text, PREFIX)


def _kinds(config: Mapping[str, Any], limit: str) -> frozenset[MediaKind]:
    """The kinds of media that the model reads and requests may have."""
    read = {
        MediaKind.IMAGE: takes_images(config), MediaKind.VIDEO: takes_videos(config),
        MediaKind.AUDIO: takes_audio(config),
    }  # fmt: skip
    return frozenset(kind for kind in MediaKind if read[kind] and most(limit, kind))
