"""Puts a checkpoint's tensors into a model's parameters."""

from __future__ import annotations

import logging
import time

import torch

from engine_svc.layers.context import PackedLayer
from engine_svc.layers.parameter import LoadedParameter
from engine_svc.loader.names import parameter_name
from engine_svc.loader.progress import with_progress
from engine_svc.loader.source import TensorSource
from engine_svc.models.decoder import Decoder
from quire.errors import StartupError

logger = logging.getLogger(__name__)

# Left out by some checkpoints and written by others; computed, not loaded.
_IGNORED = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias")


def load_weights(model: Decoder, checkpoint: TensorSource, progress: bool) -> None:
    """Loads every parameter, and packs each layer as soon as all of its own have come.

    So no more than a layer or two are there in both forms, and the memory of one is used again for the next.

    Args:
        progress: tells how far it is; see LoadingProgress.

    Raises:
        StartupError: the checkpoint lacks a parameter, has one the model does not know, or has one of another shape.
    """
    start = time.monotonic()
    loading, files = _Loading(model), checkpoint.names()
    for name, source in with_progress(checkpoint.tensors(), len(files), progress):
        if name.endswith(_IGNORED) or (name == "lm_head.weight" and model.lm_head is model.embed_tokens):
            continue
        target, part = parameter_name(name, model.module_names)
        if target in loading.packed:  # written twice
            continue
        if target not in loading.parameters:
            raise StartupError(
                f"{files.get(name, checkpoint.folder)}: the model has no parameter for the checkpoint's {name}."
            )
        try:
            loading.parameters[target].load(source, part)
        except (ValueError, KeyError) as error:
            raise StartupError(f"{files.get(name, checkpoint.folder)}: {name}: {error}") from error
        loading.pack_layer_of(target)
    if missing := [name for name, parameter in loading.parameters.items() if parameter.missing]:
        raise StartupError(
            f"{checkpoint.folder}: the checkpoint lacks {', '.join(missing[:5])} ({len(missing)} in all)."
        )
    logger.info("loaded weights in %.1f s", time.monotonic() - start)


class _Loading:
    """Which parameters are there, of which layers, and which of them are packed already."""

    def __init__(self, model: Decoder) -> None:
        self.parameters = {name: p for name, p in model.named_parameters() if isinstance(p, LoadedParameter)}
        self.packed: set[str] = set()
        self._layers = {
            name: layer
            for path, layer in model.named_modules()
            if isinstance(layer, PackedLayer)
            for name, _ in layer.named_parameters(prefix=path)
        }

    def pack_layer_of(self, name: str) -> None:
        """Packs the layer that the parameter is of, if nothing of it is missing."""
        layer = self._layers.get(name)
        if layer is None:
            return
        names = [other for other, owner in self._layers.items() if owner is layer]
        if any(self.parameters[other].missing for other in names):
            return
        for other in names:
            del self.parameters[other], self._layers[other]
        layer.pack()
        self.packed.update(names)


def pack_weights(model: Decoder) -> None:
    """Turns weights that are all there into the form that products are computed from, a layer at a time."""
    for module in model.modules():
        if isinstance(module, PackedLayer):
            module.pack()


def randomize_weights(model: Decoder, seed: int) -> None:
    """Random weights, for benchmarks of shapes: norms are one, all else is normal with a small deviation."""
    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if isinstance(parameter, LoadedParameter):
            parameter.allocate()
        if "norm" in name:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, 0.02, generator=generator)
