"""Loads the encoder of a model that reads images, videos or audio, without its text model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from engine_svc.loader.media import load_encoder_of, with_delay_told, with_head_told
from engine_svc.loader.own_dtype import compute_dtype, read_config_to_load
from engine_svc.media.base import MediaEncoder
from engine_svc.models.registry import config_for, is_ours, takes_media, text_part
from quire.errors import StartupError
from quire.options.engine import EngineOptions
from quire.options.multimodal import ENCODER_FLAG


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder, and what is known of its model."""

    encoder: MediaEncoder
    architecture: str
    dtype: torch.dtype


@torch.inference_mode()
def load_encoder_alone(folder: Path, options: EngineOptions, device: torch.device) -> LoadedEncoder:
    """Loads the encoder as `load_model` does, in the dtype of the text model.

    Raises:
        StartupError: the model has no encoder, or it cannot be loaded.
    """
    config = read_config_to_load(folder, options.form)
    if not takes_media(config):
        raise StartupError(f"{ENCODER_FLAG}: the model in {folder} reads text only, and has no encoder. Leave it out.")
    config = with_delay_told(folder, with_head_told(folder, config, options))
    runs_ours = options.form.model_impl != "transformers" and is_ours(config)
    own = config_for(text_part(config)).dtype if runs_ours else config.get("dtype") or config.get("torch_dtype")
    dtype = compute_dtype(own or "float32", options.form.dtype)
    encoder = load_encoder_of(folder, config, options, dtype, device)
    if encoder is None:
        raise StartupError(
            f"{ENCODER_FLAG}: nothing is to be encoded with --load-format {options.load.load_format} and "
            f"--limit-mm-per-prompt {options.images.limit_mm_per_prompt or '(all)'}. Leave these out."
        )
    return LoadedEncoder(encoder, config["architectures"][0], dtype)
