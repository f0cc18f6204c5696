"""Checks of every model's shape: kernels rely on it, and a mistake in config.json could crash the process."""

from __future__ import annotations

import dataclasses
import math

from engine_svc.models.attention_heads import layer_heads
from engine_svc.models.compression_config import CompressionConfig, StreamsConfig
from engine_svc.models.config import ModelConfig, MoeConfig, activation
from engine_svc.models.gemma_config import AltUpConfig
from engine_svc.models.latent_config import BlockIndexerConfig, IndexerConfig, LatentConfig
from engine_svc.models.recurrent_config import (
    DeltaNetConfig,
    LightningConfig,
    Mamba2Config,
    MambaConfig,
    RecurrentConfig,
)
from quire.errors import StartupError

Part = (
    MoeConfig | LatentConfig | IndexerConfig | BlockIndexerConfig | CompressionConfig | StreamsConfig | AltUpConfig
    | RecurrentConfig
)  # fmt: skip

# Far beyond any real model: a mistake or a hostile file could otherwise ask for all memory.
_MOST = {
    "num_layers": 2_000, "vocab_size": 2**27, "hidden_size": 2**20, "num_heads": 2**16, "num_kv_heads": 2**16,
    "head_dim": 2**16, "max_position_embeddings": 2**31,
}  # fmt: skip


def check_config(config: ModelConfig, recurrent_activation: str) -> None:
    """Checks that a model can have this shape.

    Args:
        recurrent_activation: name of the activation in the convolutions and gates of recurrent layers.

    Raises:
        StartupError: it cannot.
    """
    for name, most in _MOST.items():
        _check_whole(name, getattr(config, name), most)
    parts: list[Part | None] = [
        *config.moe, config.latent, config.indexer, config.compression, config.streams, config.altup,
        *config.recurrent.values(),
    ]  # fmt: skip
    _check_numbers(config, least=0)
    # Layers without a dense feed-forward part have no such size.
    if config.norm_placement != "alone" and any(moe is None or moe.beside_dense for moe in config.moe):
        for size in (config.intermediate_size, *config.own_sizes.values()):
            _check_whole("intermediate_size", size, 2**24)
    for part in parts:
        if part is not None:
            _check_numbers(part, least=1)
    for heads in {layer_heads(config, layer) for layer in config.attention_windows if layer < config.num_layers}:
        if not config.latent and (heads.number < 1 or heads.queries % heads.number):
            raise StartupError(
                f"config.json: num_kv_heads is {heads.number}; expected a divisor of num_heads, {heads.queries}."
            )
    if len(config.sliding_windows) < config.num_layers or len(config.moe) < config.num_layers:
        raise StartupError(
            f"config.json: a list of layers has fewer entries than num_hidden_layers, {config.num_layers}."
        )
    for window in filter(lambda each: each is not None, config.sliding_windows):
        _check_whole("sliding_window", window, 2**31)
    for moe in filter(None, config.moe):
        _check_mixture(moe)
    if isinstance(config.indexer, BlockIndexerConfig):
        _check_block_indexer(config.indexer, config)
    elif config.indexer and config.latent:
        _check_indexer(config.indexer, config.latent)
    if config.compression:
        _check_compression(config.compression)
    _check_recurrent(config, recurrent_activation)


def check_windows(config: ModelConfig, given: object) -> None:
    """Checks that a list of windows, one for each layer, was read: few families have one.

    Args:
        given: `sliding_windows` of config.json.

    Raises:
        StartupError: layers have other windows.
    """
    if not isinstance(given, list) or not any(given):
        return
    found = config.sliding_windows
    if not any(found) or any(window not in (None, size) for window, size in zip(found, given, strict=False)):
        raise StartupError(
            f"config.json: sliding_windows is {given}, but lists of windows are not supported for "
            f"{config.architecture}."
        )


def _check_numbers(shape: ModelConfig | Part, least: int) -> None:
    """Raises unless all fields annotated as int or float are such numbers.

    Args:
        least: lower bound of ints.
    """
    for each in dataclasses.fields(shape):
        value, (kind, _, other) = getattr(shape, each.name), str(each.type).partition(" | ")
        if kind not in ("int", "float") or (value is None and other == "None"):
            continue
        if kind == "int" and not (isinstance(value, int) and value >= least):
            raise StartupError(f"config.json: {each.name} is {value!r}; expected a whole number of at least {least}.")
        if kind == "float" and not (isinstance(value, int | float) and math.isfinite(value)):
            raise StartupError(f"config.json: {each.name} is {value!r}; expected a number.")


def _check_whole(name: str, size: object, most: int) -> None:
    if not isinstance(size, int) or not 1 <= size <= most:
        raise StartupError(f"config.json: {name} is {size!r}; expected a whole number from 1 to {most:,}.")


def _check_mixture(moe: MoeConfig) -> None:
    _check_whole("the number of experts", moe.num_experts, 2**16)
    if moe.num_groups < 1 or moe.num_experts % moe.num_groups:
        raise StartupError(
            f"config.json: n_group is {moe.num_groups}; expected a number that divides {moe.num_experts} experts."
        )
    _check_whole("topk_group", moe.chosen_groups, moe.num_groups)
    _check_whole("num_experts_per_tok", moe.experts_per_token, moe.num_experts // moe.num_groups * moe.chosen_groups)


def _check_indexer(indexer: IndexerConfig, latent: LatentConfig) -> None:
    _check_whole("the rotated part of index_head_dim", latent.rotated_dim, indexer.head_dim)
    if latent.query_rank is None:
        raise StartupError("config.json has an indexer (index_topk), which needs a q_lora_rank.")
    if 0 in indexer.shared_layers:
        raise StartupError("config.json: the first layer has no earlier layer whose chosen tokens it could share.")


def _check_block_indexer(indexer: BlockIndexerConfig, config: ModelConfig) -> None:
    _check_whole("index_local_blocks", indexer.local_blocks, indexer.most_blocks)
    _check_whole("the rotated part of index_head_dim", config.rotary_dim, indexer.head_dim)
    if indexer.heads != config.num_kv_heads:
        raise StartupError(
            f"config.json: index_n_heads is {indexer.heads}; expected one for each key-value head, "
            f"{config.num_kv_heads}."
        )


def _check_compression(compression: CompressionConfig) -> None:
    for each in filter(None, compression.layers):
        _check_whole("a layer's compression rate", each.rate, 2**16)
    rotated, smallest = compression.rotated_dim, min(compression.head_dim, compression.index_head_dim)
    if rotated % 2 or rotated > smallest:
        raise StartupError(f"config.json: {rotated} values of heads are rotated; expected an even number of at most "
                           f"{smallest}.")  # fmt: skip


def _check_recurrent(config: ModelConfig, name: str) -> None:
    kinds = (MambaConfig, Mamba2Config, DeltaNetConfig, LightningConfig)
    if any(isinstance(layer, kinds) for layer in config.recurrent.values()) and activation(name) != "silu":
        raise StartupError(f"config.json has the activation {name!r}; for recurrent layers, only silu is supported.")
