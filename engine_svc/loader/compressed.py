"""The attention backend of models with compressed entries."""

from __future__ import annotations

import torch

from engine_svc.attention.base import AttentionShape
from engine_svc.attention.compressed import CachedSizes, CompressedBackend
from engine_svc.loader.attention_shape import plain_shape
from engine_svc.models.compression_config import CompressionConfig
from engine_svc.models.config import ModelConfig
from engine_svc.parallel.group import ParallelGroups
from quire.errors import StartupError
from quire.options.engine import EngineOptions


def compressed_backend(
    config: ModelConfig, compression: CompressionConfig, options: EngineOptions, groups: ParallelGroups,
    dtype: torch.dtype, device: torch.device,
) -> CompressedBackend:  # fmt: skip
    """Creates the backend.

    Raises:
        StartupError: the options ask for something that it cannot do.
    """
    _check(config, options)
    heads = groups.tensor.divide(config.num_heads, "attention heads"), 1, compression.head_dim
    shape = plain_shape(heads, options, dtype, device)
    kinds = {each for each in compression.layers if each is not None}
    sizes = CachedSizes(
        cells=tuple(compression.cell_size(each) for each in compression.layers),
        entry=max((_entry_size(compression.entry_size(each), each.rate, shape) for each in kinds), default=1),
    )
    try:
        return CompressedBackend(shape, sizes, sorted(kinds), compression.window)
    except ValueError as error:
        raise StartupError(f"{error}. Choose another one.") from error


def _entry_size(size: int, rate: int, shape: AttentionShape) -> int:
    """Numbers of a block's entries, divided by its tokens, rounded up."""
    return -(-max(1, shape.block_size // rate) * size // shape.block_size)


def _check(config: ModelConfig, options: EngineOptions) -> None:
    cache, backend = options.cache, options.kernels.attention_backend
    refused = {
        # A draft head is asked for the target's.
        f"--attention-backend {backend}": backend not in ("auto", CompressedBackend.name),
        f"--kv-cache-dtype {cache.kv_cache_dtype}": cache.kv_cache_dtype not in ("auto", "bfloat16"),
        "--decode-context-parallel-size": options.parallel.decode_context_parallel_size > 1,
        "--batch-invariant": options.kernels.batch_invariant is True,
        "--disable-sliding-window": options.form.disable_sliding_window,
        "--enable-prompt-embeds": options.generation.enable_prompt_embeds and _reads_token_ids(config),
    }
    if wrong := [name for name, given in refused.items() if given]:
        raise StartupError(f"{config.architecture}, whose layers compress what they attend to, does not support "
                           f"{wrong[0]}. Leave it out.")  # fmt: skip


def _reads_token_ids(config: ModelConfig) -> bool:
    return any(moe and moe.table_tokens for moe in config.moe)
