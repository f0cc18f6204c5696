"""Puts a checkpoint's tensors into a model's parameters."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import torch

from engine_svc.layers.context import PackedLayer
from engine_svc.layers.parameter import LoadedParameter
from engine_svc.loader.checkpoint import tensors
from engine_svc.loader.names import parameter_name
from engine_svc.models.decoder import Decoder
from quire.errors import StartupError

logger = logging.getLogger(__name__)

# Left out by some checkpoints and written by others; computed, not loaded.
_IGNORED = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias")


def load_weights(model: Decoder, folder: Path, progress: bool) -> None:
    """Loads every parameter.

    Raises:
        StartupError: the checkpoint lacks a parameter, has one the model does not know, or has one of another shape.
    """
    start = time.monotonic()
    parameters = {name: p for name, p in model.named_parameters() if isinstance(p, LoadedParameter)}
    for name, source in tensors(folder, progress):
        if name.endswith(_IGNORED) or (name == "lm_head.weight" and model.lm_head is model.embed_tokens):
            continue
        target, part = parameter_name(name)
        if target not in parameters:
            raise StartupError(f"{folder}: the model has no parameter for the checkpoint's {name}.")
        try:
            parameters[target].load(source, part)
        except (ValueError, KeyError) as error:
            raise StartupError(f"{folder}: {name}: {error}") from error
    if missing := [name for name, parameter in parameters.items() if parameter.missing]:
        raise StartupError(f"{folder}: the checkpoint lacks {', '.join(missing[:5])} ({len(missing)} in all).")
    logger.info("loaded weights in %.1f s", time.monotonic() - start)


def pack_weights(model: Decoder) -> None:
    """Turns the loaded weights into the form that products are computed from, a layer at a time."""
    for module in model.modules():
        if isinstance(module, PackedLayer):
            module.pack()


def randomize_weights(model: Decoder, seed: int) -> None:
    """Random weights, for benchmarks of shapes: norms are one, all else is normal with a small deviation."""
    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, 0.02, generator=generator)
