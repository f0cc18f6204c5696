"""Computes how many KV blocks fit next to the states of recurrent layers, and the longest sequence they hold."""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from dataclasses import dataclass, replace

from msgspec import structs

from engine_svc.layer_groups import most_blocks, tokens_under_way
from engine_svc.plan import CacheSize, KvCacheSpec
from quire.errors import StartupError
from quire.options.cache import CacheOptions
from quire.options.engine import EngineOptions
from quire.options.scheduler import SchedulerOptions

logger = logging.getLogger(__name__)

# The bookkeeping costs about 100 bytes per block.
MAX_BLOCKS = 2**20
# For tiny models: unless its size is given, the cache takes at most this many times what a full batch of the longest
# sequences needs. More would only keep prefixes, and cost startup time.
_BATCHES = 4
# How much of the memory beside running sequences' states may hold saved ones, each of which takes as much as the keys
# and values of hundreds or thousands of tokens.
_SNAPSHOT_SHARE = 1 / 3


@dataclass(frozen=True)
class KvCacheSize:
    """The number of KV cache blocks, and the most tokens that one sequence may have.

    Attributes:
        num_tokens: tokens that the blocks hold when all sequences have the maximum length.
        num_snapshots: places for saved states of recurrent layers, and `snapshot_tokens`, the multiples of tokens after
            which states are saved; 0 without the prefix cache or such layers.
        snapshot_bytes: size of a saved state on each rank.
        num_host_blocks, num_host_snapshots: the same numbers in host memory.
        num_sequences: those that have states of recurrent layers at once; 0 without such layers.
    """

    num_blocks: int
    max_model_len: int
    num_tokens: int = 0
    num_host_blocks: int = 0
    num_snapshots: int = 0
    snapshot_tokens: int = 0
    snapshot_bytes: int = 0
    num_host_snapshots: int = 0
    num_sequences: int = 0

    @property
    def allocated(self) -> CacheSize:
        """What each rank allocates."""
        return CacheSize(
            self.num_blocks, self.num_host_blocks, self.num_snapshots, self.num_host_snapshots, self.num_sequences
        )


def fit_sequences(spec: KvCacheSpec, options: EngineOptions) -> tuple[KvCacheSpec, EngineOptions]:
    """Without --max-num-seqs, lets fewer sequences run at once if memory does not hold the states of recurrent layers
    for so many. States then take half of it, so that there is room for blocks and saved states.

    Returns:
        Both, for these sequences.
    """
    most, available = options.scheduler.most_sequences, spec.available_bytes
    is_fixed = options.form.max_model_len is not None
    longest = _blocks_for(spec.max_model_len, spec) * spec.bytes_per_block if is_fixed else 0
    is_set = options.scheduler.max_num_seqs is not None or options.cache.num_gpu_blocks_override is not None
    if is_set or not spec.state_bytes or spec.state_bytes < available - longest:
        return spec, options
    each = spec.state_bytes // most
    count = max(1, min(available // 2, available - longest) // each)
    logger.warning(
        "at most %d sequences run at once instead of %d: the states of the model's recurrent layers need %s for each. "
        "Raise %s for more, or set --max-num-seqs, so that startup fails if there is not enough room",
        count, most, _gib(each), _memory_option(spec),
    )  # fmt: skip
    scheduler = replace(options.scheduler, max_num_seqs=count)
    return structs.replace(spec, state_bytes=count * each), replace(options, scheduler=scheduler)


def size_kv_cache(spec: KvCacheSpec, options: EngineOptions) -> KvCacheSize:
    """Computes the size of the KV cache.

    Raises:
        StartupError: one sequence of the requested length does not fit; the message names the largest --max-model-len
            that does. Or whole prompts (--no-enable-chunked-prefill) do not fit the token budget, or other options
            conflict.
    """
    cache, scheduler = options.cache, options.scheduler
    _check_tiers(cache)
    # A running sequence has as many states as a step may verify tokens of it.
    state_bytes = spec.state_bytes // (scheduler.most_sequences * options.speculative.most_query_len)
    num_snapshots = _num_snapshots(spec, options, state_bytes)
    if cache.num_gpu_blocks_override is not None:
        size = _overridden(cache.num_gpu_blocks_override, spec)
    else:
        free = _beside_states(spec, options) - num_snapshots * state_bytes
        most = _most(spec, cache, scheduler.most_sequences)
        fitting = free // spec.bytes_per_block if spec.bytes_per_block else most
        num_blocks = min(fitting, most)
        longest = _longest(num_blocks, free, spec, is_fixed=options.form.max_model_len is not None)
        size = KvCacheSize(num_blocks, longest)
    sequences = size.num_blocks / _blocks_for(size.max_model_len, spec)
    size = replace(
        size,
        num_tokens=int(sequences * -(-size.max_model_len // spec.block_size) * spec.block_size),
        num_snapshots=num_snapshots,
        snapshot_bytes=state_bytes,
        num_sequences=scheduler.most_sequences if spec.state_bytes else 0,
        snapshot_tokens=-(-cache.mamba_block_size // spec.block_size) * spec.block_size if num_snapshots else 0,
    )
    _check_budget(size, spec.max_num_batched_tokens, scheduler)
    return _with_host_tier(size, spec.bytes_per_block, cache, options.parallel.num_ranks)


def _with_host_tier(size: KvCacheSize, block_bytes: int, cache: CacheOptions, num_ranks: int) -> KvCacheSize:
    """Divides host memory among blocks and saved states, in the proportion that they have on the device.

    Raises:
        StartupError: it has no room for one of each.
    """
    num_bytes = cache.host_bytes(num_ranks)
    on_device = size.num_blocks * block_bytes + size.num_snapshots * size.snapshot_bytes
    if not cache.host_memory_options or not on_device:
        return size
    least = -(-on_device // min(size.num_blocks, size.num_snapshots or size.num_blocks))
    if num_bytes < least:
        state = f" and the states of recurrent layers {size.snapshot_bytes}" if size.num_snapshots else ""
        needed = least if cache.swap_space else least * num_ranks
        gib = math.ceil(needed / 2**30 * 10**6) / 10**6
        raise StartupError(
            f"{cache.host_memory_options[0]} leaves {num_bytes} bytes of host memory to each rank, where a KV "
            f"block takes {block_bytes}{state}: make it at least {needed} bytes ({gib:f} GiB), "
            "better many times that, or leave it out."
        )
    return replace(
        size, num_host_blocks=size.num_blocks * num_bytes // on_device,
        num_host_snapshots=size.num_snapshots * num_bytes // on_device,
    )  # fmt: skip


def _check_tiers(cache: CacheOptions) -> None:
    """Checks the options that keep blocks elsewhere than on the device.

    Raises:
        StartupError: they conflict.
    """
    transfer, host = cache.transfer(), cache.host_memory_options
    if not cache.enable_prefix_caching and (host or transfer.is_on):
        named = "--kv-transfer-config" if transfer.is_on else host[0]
        raise StartupError(f"{named} keeps blocks of the prefix cache elsewhere: it needs --enable-prefix-caching.")
    if len(host) > 1:
        raise StartupError(f"{' and '.join(host)} all say how much host memory KV blocks may take; leave one of them.")


def _beside_states(spec: KvCacheSpec, options: EngineOptions) -> int:
    """Bytes left for blocks after the states of recurrent layers.

    Raises:
        StartupError: the states take all available memory.
    """
    if spec.state_bytes < spec.available_bytes or not spec.state_bytes:
        return spec.available_bytes - spec.state_bytes
    each = options.speculative.most_query_len
    count, drafts = options.scheduler.most_sequences, f", {each} each for speculation," if each > 1 else ""
    lower = ["--max-num-seqs"] * (count > 1) + ["num_speculative_tokens"] * (each > 1)
    advice = f"Lower {' or '.join(lower)}, or raise" if lower else "Raise"
    raise StartupError(
        f"Not enough memory for the states of the model's recurrent layers: those of {count} "
        f"sequence{'s' * (count > 1)}{drafts} need {_gib(spec.state_bytes)}, but {_gib(spec.available_bytes)} are free "
        f"for them and the KV cache. {advice} {_memory_option(spec)}."
    )


def _num_snapshots(spec: KvCacheSpec, options: EngineOptions, state_bytes: int) -> int:
    """How many states of recurrent layers can be saved for the prefix cache.

    Args:
        state_bytes: bytes of a sequence's states after one token.
    """
    if not state_bytes or not options.cache.enable_prefix_caching or options.cache.mamba_cache_mode == "none":
        return 0
    free = spec.available_bytes - spec.state_bytes
    beside_longest = free - _blocks_for(spec.max_model_len, spec) * spec.bytes_per_block
    room = max(0, min(int(_SNAPSHOT_SHARE * free), beside_longest))
    count = min(room // state_bytes, _BATCHES * options.scheduler.most_sequences)
    if not count:
        logger.warning("prefix caching is off: there is no room to save states of recurrent layers. Lower "
                       "--max-num-seqs, or raise %s", _memory_option(spec))  # fmt: skip
    return count


def _memory_option(spec: KvCacheSpec) -> str:
    return "--kv-cache-memory-bytes" if spec.device.startswith("cpu") else "--gpu-memory-utilization"


def _most(spec: KvCacheSpec, cache: CacheOptions, max_num_seqs: int) -> int:
    """The largest useful number of blocks."""
    if cache.kv_cache_memory_bytes is not None:
        return MAX_BLOCKS
    return min(MAX_BLOCKS, _BATCHES * max_num_seqs * _blocks_for(spec.max_model_len, spec))


def _blocks_for(num_tokens: int, spec: KvCacheSpec) -> int:
    """The most blocks, over all groups, that one sequence of `num_tokens` tokens holds at once."""
    under_way = tokens_under_way(spec.max_num_batched_tokens, spec.num_stages)
    return sum(most_blocks(window, num_tokens, spec.block_size, under_way) for window in spec.windows)


def _capacity(num_blocks: int, spec: KvCacheSpec) -> int:
    """The longest sequence, in whole blocks, that `num_blocks` blocks hold; may exceed the model's length."""
    size = spec.block_size
    lengths = range(size, max(spec.max_model_len + size, (num_blocks + 1) * size), size)
    return bisect_right(lengths, num_blocks, key=lambda length: _blocks_for(length, spec)) * size


def _overridden(num_blocks: int, spec: KvCacheSpec) -> KvCacheSize:
    """Uses the overriding number of blocks, and cuts the longest sequence to what they hold."""
    capacity = _capacity(num_blocks, spec)
    if capacity < spec.max_model_len:
        logger.warning("--num-gpu-blocks-override %d limits the longest sequence to %d tokens", num_blocks, capacity)
    return KvCacheSize(num_blocks, min(spec.max_model_len, capacity))


def _longest(num_blocks: int, free: int, spec: KvCacheSpec, *, is_fixed: bool) -> int:
    """The longest sequence: the model's length, or what the blocks hold of it.

    Raises:
        StartupError: the blocks hold less than the requested length (`is_fixed`), or nothing.
    """
    capacity = _capacity(num_blocks, spec)
    if capacity >= spec.max_model_len:
        return spec.max_model_len
    needed = _blocks_for(spec.max_model_len, spec) * spec.bytes_per_block
    lacking = f"one sequence of {spec.max_model_len} tokens needs {_gib(needed)}, but {_gib(free)} are free"
    if capacity and not is_fixed:
        logger.warning(
            "the longest sequence is limited to %d tokens, less than the model's: %s. Raise %s for longer ones, or "
            "set --max-model-len, so that startup fails if there is not enough room",
            capacity, lacking, _memory_option(spec),
        )  # fmt: skip
        return capacity
    fits = f"The largest --max-model-len that fits is {capacity}" if capacity else "Not even one block fits"
    raise StartupError(
        f"Not enough memory for the KV cache: {lacking}. {fits}. Lower --max-model-len, raise {_memory_option(spec)}, "
        "or spread the model over more devices with --tensor-parallel-size or --pipeline-parallel-size."
    )


def _check_budget(size: KvCacheSize, budget: int, options: SchedulerOptions) -> None:
    if not options.enable_chunked_prefill and budget < size.max_model_len:
        raise StartupError(
            f"--no-enable-chunked-prefill computes each prompt in one step, so --max-num-batched-tokens "
            f"({budget}) must be at least the longest sequence ({size.max_model_len}). Raise "
            "it, lower --max-model-len, or leave chunked prefill on."
        )
    if options.long_prefill_token_threshold and not options.enable_chunked_prefill:
        raise StartupError("--long-prefill-token-threshold splits prompts: it needs --enable-chunked-prefill.")
    if options.max_long_partial_prefills > options.max_num_partial_prefills:
        raise StartupError(
            f"--max-long-partial-prefills ({options.max_long_partial_prefills}) must not be more than "
            f"--max-num-partial-prefills ({options.max_num_partial_prefills}): long prompts are counted in both."
        )


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**27 else f"{count / 2**20:.2f} MiB"
