"""The heads and the KV cache that a rank's attention backend is created for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from engine_svc.attention.base import AttentionBackend, AttentionShape
from engine_svc.attention.context import ContextPart
from engine_svc.attention.mixed import MixedBackend
from engine_svc.layers.linear import qkv_parts
from engine_svc.models.attention_heads import LayerKind, kinds_of_layers, layer_kind
from engine_svc.models.config import LayerHeads, ModelConfig
from engine_svc.parallel.group import ParallelGroup, ParallelGroups
from quire.errors import StartupError
from quire.options.cache import KV_CACHE_DTYPES, SLIDING_WINDOW, CacheOptions
from quire.options.engine import EngineOptions
from quire.registry import registry

logger = logging.getLogger(__name__)

_BLOCK_SIZE, _GPU_BLOCK_SIZE = 16, 64  # on a GPU, tiles of keys that it copies by itself must be in one block
_CACHE_DTYPES = registry("--kv-cache-dtype", KV_CACHE_DTYPES, {
    "auto": None, "bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2,
})  # fmt: skip


def backend_for_layers(config: ModelConfig, create: Callable[[LayerKind], AttentionBackend]) -> AttentionBackend:
    """The backend for all layers, which has parts of its own for each kind.

    Args:
        create: makes a backend for layers of a kind.
    """
    kinds = kinds_of_layers(config)
    first, *others = map(create, kinds)
    if not others:
        return first
    attending = filter(config.attends, range(config.num_layers))
    return MixedBackend([first, *others], {layer: kinds.index(layer_kind(config, layer)) for layer in attending})


def attention_shape(
    config: ModelConfig, options: EngineOptions, groups: ParallelGroups, dtype: torch.dtype, device: torch.device,
    kind: LayerKind,
) -> AttentionShape:  # fmt: skip
    """The shape for layers of one of Quire's own models.

    Args:
        kind: of the layers.

    Raises:
        StartupError: the ranks cannot share contexts as asked.
    """
    shape = plain_shape(_heads(config, groups.tensor, kind.heads), options, dtype, device)
    shape = replace(
        shape, batch_invariant=options.kernels.batch_invariant is True,
        most_chosen=config.indexer.most if config.indexer else 0,
    )  # fmt: skip
    if kind.keeps_dtype:
        shape = replace(shape, cache_dtype=None)
    if latent := config.latent:
        # What adapters add to keys and values depends on the token.
        # And sinks are not among the plain keys.
        is_plain = not options.lora.enable_lora and config.attention_sinks == "none"
        expanded_dim = latent.plain_dim + latent.value_dim if is_plain else 0
        shape = replace(shape, keys_are_values=True, expanded_dim=expanded_dim)
    return _shared(shape, config, groups, kind.heads)


def with_skipped_layers(config: ModelConfig, cache: CacheOptions) -> ModelConfig:
    """The configuration with the layers of --kv-cache-dtype-skip-layers.

    Raises:
        StartupError: they are not layers of the model, or it supports this option for none.
    """
    names = cache.kv_cache_dtype_skip_layers
    if not names:
        return config
    if config.latent or config.indexer or config.compression or config.encoder_tokens:
        raise StartupError(
            f"{config.architecture} does not support --kv-cache-dtype-skip-layers: all of its layers have the same "
            "--kv-cache-dtype. Leave it out."
        )
    layers = {str(layer): [layer] for layer in config.attention_windows}
    windowed = {} if config.windows_are_chunks else config.attention_windows
    layers[SLIDING_WINDOW] = [layer for layer, window in windowed.items() if window is not None]
    if unknown := [name for name in names if name not in layers]:
        raise StartupError(
            f"--kv-cache-dtype-skip-layers {unknown[0]}: expected {SLIDING_WINDOW}, or a number below "
            f"{config.num_layers}, of a layer that has keys and values of its own."
        )
    if SLIDING_WINDOW in names and not layers[SLIDING_WINDOW]:
        logger.warning("--kv-cache-dtype-skip-layers %s: no layer of the model has one", SLIDING_WINDOW)
    return replace(config, dtype_keeping_layers=frozenset(layer for name in names for layer in layers[name]))


def plain_shape(
    heads: tuple[int, int, int], options: EngineOptions, dtype: torch.dtype, device: torch.device
) -> AttentionShape:
    """The shape for plain keys and values of all positions.

    Args:
        heads: numbers of query heads and of key-value heads, and their size.
    """
    cache_dtype = _CACHE_DTYPES[options.cache.kv_cache_dtype]
    block_size = options.cache.block_size or (_GPU_BLOCK_SIZE if device.type == "cuda" else _BLOCK_SIZE)
    return AttentionShape(*heads, block_size, dtype, device, cache_dtype=None if cache_dtype == dtype else cache_dtype)


def _heads(config: ModelConfig, group: ParallelGroup, heads: LayerHeads) -> tuple[int, int, int]:
    """This rank's numbers of query heads and key-value heads, and the head size."""
    if config.latent:
        size = config.latent.rank + config.latent.rotated_dim
        return group.divide(config.num_heads, "attention heads"), 1, size
    if not config.attention_windows:  # no layer attends, so the configured heads mean nothing
        return 1, 1, heads.size
    parts = qkv_parts(group, heads.queries, heads.number, heads.size)
    return parts["q"].count // heads.size, parts["k"].count // heads.size, heads.size


def _shared(shape: AttentionShape, config: ModelConfig, groups: ParallelGroups, heads: LayerHeads) -> AttentionShape:
    """The shape with decode context parallelism: each rank attends to its part with the query heads of all ranks.

    Raises:
        StartupError: the ranks do not cache the same heads.
    """
    group, tensor = groups.decode_context, groups.tensor.world_size
    if group.world_size == 1:
        return shape
    count = 1 if config.latent else heads.number
    copies = tensor // count if not tensor % count and config.attention_windows else 1
    if copies % group.world_size:
        raise StartupError(
            f"--decode-context-parallel-size {group.world_size} needs ranks that cache the same heads: with "
            f"--tensor-parallel-size {tensor}, {copies} ranks have each of this model's {count} key-value heads. "
            f"Choose a divisor of {copies}, or a larger --tensor-parallel-size."
        )
    return replace(shape, num_heads=shape.num_heads * group.world_size, part=ContextPart(group.rank, group.world_size))
