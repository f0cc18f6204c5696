"""Loads the image encoder of a vision-language model, if images are wanted."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine_svc.loader.formats.base import CheckpointFormat
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.formats.whole import all_tensors
from engine_svc.models.registry import takes_images, takes_videos
from quire.media import MediaKind
from quire.options.engine import EngineOptions
from quire.options.multimodal import most

if TYPE_CHECKING:
    from engine_svc.images.encoder import ImageEncoder

logger = logging.getLogger(__name__)


def with_head_told(folder: Path, config: dict[str, Any], options: EngineOptions) -> dict[str, Any]:
    """The configuration of a vision-language model with whether the embedding is also the output layer.

    Published ones leave that out or are wrong about it; as in Transformers, what the checkpoint has decides. Other
    models' configurations are returned unchanged.

    Raises:
        StartupError: the checkpoint's files are missing or broken.
    """
    if not takes_images(config):
        return config
    source = create_format(folder, options.load)
    if not isinstance(source, CheckpointFormat):
        return config
    return {**config, "tie_word_embeddings": not any("lm_head." in name for name in source.names())}


def load_image_encoder(
    folder: Path, config: Mapping[str, Any], options: EngineOptions, dtype: torch.dtype, device: torch.device
) -> ImageEncoder | None:
    """The model's image encoder; None if the model reads text only, or is served for text only.

    Args:
        config: config.json, with the user's changes.

    Raises:
        StartupError: it cannot be loaded.
    """
    kinds = _kinds(config, options.images.limit_mm_per_prompt)
    if not kinds:
        return None
    source = create_format(folder, options.load)
    if not source.is_random and not isinstance(source, CheckpointFormat):
        logger.warning(
            "images are refused: --load-format %s has the weights of the text model only", options.load.load_format
        )
        return None
    from engine_svc.images.encoder import ImageEncoder  # imports Transformers, which most models do not need

    if source.is_random:
        return ImageEncoder(folder, config, kinds, dtype, device, None, seed=options.generation.seed or 0)
    return ImageEncoder(folder, config, kinds, dtype, device, all_tensors(source))


def _kinds(config: Mapping[str, Any], limit: str) -> frozenset[MediaKind]:
    """The kinds of media that the model reads and requests may have."""
    read = {MediaKind.IMAGE: takes_images(config), MediaKind.VIDEO: takes_videos(config)}
    return frozenset(kind for kind in MediaKind if read[kind] and most(limit, kind))
