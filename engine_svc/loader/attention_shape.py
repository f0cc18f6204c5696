"""The heads and the KV cache that a rank's attention backend is created for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from engine_svc.attention.base import AttentionBackend, AttentionShape
from engine_svc.attention.context import ContextPart
from engine_svc.attention.mixed import MixedBackend
from engine_svc.layers.linear import qkv_parts
from engine_svc.models.attention_heads import kinds_of_heads, layer_heads
from engine_svc.models.config import LayerHeads, ModelConfig
from engine_svc.parallel.group import ParallelGroup, ParallelGroups
from quire.errors import StartupError
from quire.options.cache import KV_CACHE_DTYPES
from quire.options.engine import EngineOptions
from quire.registry import registry

_BLOCK_SIZE, _GPU_BLOCK_SIZE = 16, 64  # on a GPU, tiles of keys that it copies by itself must be in one block
_CACHE_DTYPES = registry("--kv-cache-dtype", KV_CACHE_DTYPES, {
    "auto": None, "bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2,
})  # fmt: skip


def backend_for_layers(config: ModelConfig, create: Callable[[LayerHeads], AttentionBackend]) -> AttentionBackend:
    """The backend for all layers, which has parts of its own for each kind if these differ in their heads.

    Args:
        create: makes a backend for layers with the same heads.
    """
    kinds = kinds_of_heads(config)
    first, *others = map(create, kinds)
    if not others:
        return first
    attending = filter(config.attends, range(config.num_layers))
    return MixedBackend([first, *others], {layer: kinds.index(layer_heads(config, layer)) for layer in attending})


def attention_shape(
    config: ModelConfig, options: EngineOptions, groups: ParallelGroups, dtype: torch.dtype, device: torch.device,
    heads: LayerHeads,
) -> AttentionShape:  # fmt: skip
    """The shape for layers of one of Quire's own models.

    Args:
        heads: of the layers.

    Raises:
        StartupError: the ranks cannot share contexts as asked.
    """
    shape = plain_shape(_heads(config, groups.tensor, heads), options, dtype, device)
    shape = replace(shape, batch_invariant=options.kernels.batch_invariant is True)
    if latent := config.latent:
        # What adapters add to keys and values depends on the token.
        # And sinks are not among the plain keys.
        is_plain = not options.lora.enable_lora and config.attention_sinks == "none"
        expanded_dim = latent.plain_dim + latent.value_dim if is_plain else 0
        most_chosen = config.indexer.most if config.indexer else 0
        shape = replace(shape, keys_are_values=True, expanded_dim=expanded_dim, most_chosen=most_chosen)
    return _shared(shape, config, groups, heads)


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
