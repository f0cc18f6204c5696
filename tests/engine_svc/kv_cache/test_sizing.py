"""Computing KV blocks from available memory, and the helpful errors at startup."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine_svc.kv_cache.sizing import KvCacheSize, fit_sequences, size_kv_cache
from engine_svc.plan import KvCacheSpec
from quire.errors import StartupError
from quire.options.engine import EngineOptions
from tests.support.engine_options import engine_options
from tests.support.fake_executor import FakeExecutor

SPEC = FakeExecutor(block_size=16, max_model_len=100, bytes_per_block=1000, available_bytes=10_000).spec


def changed(**changes: Any) -> KvCacheSpec:
    """Returns the spec with some fields changed."""
    return msgspec.structs.replace(SPEC, **changes)


def test_memory_is_divided_into_blocks() -> None:
    assert size_kv_cache(SPEC, EngineOptions()) == KvCacheSize(10, 100, 160)


def test_a_tiny_model_takes_no_more_than_it_can_use() -> None:
    spec = changed(available_bytes=10**9)
    assert size_kv_cache(spec, engine_options(max_num_seqs=2)).num_blocks == 4 * 2 * 7
    assert size_kv_cache(spec, engine_options(max_num_seqs=2, kv_cache_memory_bytes=10**9)).num_blocks == 10**6


def test_too_little_memory_names_the_length_that_fits() -> None:
    with pytest.raises(StartupError) as caught:
        size_kv_cache(changed(max_model_len=161), engine_options(max_model_len=161))
    assert "--max-model-len that fits is 160" in str(caught.value)
    assert "--kv-cache-memory-bytes" in str(caught.value)
    assert size_kv_cache(changed(max_model_len=160), EngineOptions()).max_model_len == 160


def test_the_length_is_what_memory_holds_where_none_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    assert size_kv_cache(changed(max_model_len=161), EngineOptions()) == KvCacheSize(10, 160, 160)
    assert "the longest sequence is limited to 160 tokens" in caplog.text
    assert "Raise --kv-cache-memory-bytes" in caplog.text


def test_layers_with_a_window_need_few_blocks() -> None:
    spec = changed(windows=(None, 16, 16), max_num_batched_tokens=32, max_model_len=1600)
    # All tokens for the first group; for the others the window, two steps, and a block at each end.
    found = size_kv_cache(msgspec.structs.replace(spec, available_bytes=114_000), EngineOptions())
    assert (found.num_blocks, found.max_model_len, found.num_tokens) == (114, 1600, 1600)
    with pytest.raises(StartupError, match="--max-model-len that fits is 1584"):
        size_kv_cache(msgspec.structs.replace(spec, available_bytes=113_000), engine_options(max_model_len=1600))


def test_windows_hold_a_length_that_is_no_whole_number_of_blocks() -> None:
    spec = changed(windows=(64,), max_num_batched_tokens=32, max_model_len=1605, available_bytes=50_000)
    assert size_kv_cache(spec, engine_options(max_model_len=1605)).max_model_len == 1605
    assert size_kv_cache(spec, EngineOptions()).max_model_len == 1605


def test_states_take_their_memory_first() -> None:
    assert size_kv_cache(changed(state_bytes=2500), EngineOptions()).num_blocks == 7
    with pytest.raises(StartupError, match="those of 3 sequences need") as caught:
        size_kv_cache(changed(state_bytes=10_000), engine_options(max_num_seqs=3))
    assert "Lower --max-num-seqs, or raise --kv-cache-memory-bytes" in str(caught.value)


def test_fewer_sequences_run_where_states_do_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    """Unless their number is set. States then take half of the memory, or less beside a length that is set."""

    def fitting(spec: KvCacheSpec, **given: Any) -> tuple[int, int, KvCacheSize]:
        spec, options = fit_sequences(spec, engine_options(**given))
        size = size_kv_cache(spec, options)
        assert size.num_sequences == size.allocated.num_sequences == options.scheduler.most_sequences
        return size.num_sequences, spec.state_bytes, size

    assert fitting(changed(state_bytes=256 * 30))[0] == 256
    assert "instead of 256" not in caplog.text
    count, state_bytes, size = fitting(changed(state_bytes=256 * 50))
    assert (count, state_bytes, size.num_blocks, size.snapshot_bytes) == (100, 5000, 5, 50)
    assert "at most 100 sequences run at once instead of 256" in caplog.text
    assert "Raise --kv-cache-memory-bytes for more, or set --max-num-seqs" in caplog.text
    assert fitting(changed(state_bytes=256 * 50), max_model_len=100)[0] == 3000 // 50  # 7 blocks beside them
    assert fitting(changed(state_bytes=256 * 30), max_model_len=100)[0] == 3000 // 30
    assert fitting(changed(state_bytes=256 * 4000, max_model_len=80), max_model_len=80)[0] == 1
    with pytest.raises(StartupError, match=r"those of 1 sequence need .* Raise --kv-cache-memory-bytes\."):
        fitting(changed(state_bytes=256 * 10_000))
    with pytest.raises(StartupError, match=r"those of 256 sequences need .* Lower --max-num-seqs, or raise"):
        fitting(changed(state_bytes=256 * 50), max_num_seqs=256)


def test_saved_states_take_a_third_of_what_is_left_beside_the_longest_sequence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def size(available_bytes: int, **options: Any) -> tuple[int, int, int]:
        spec = changed(state_bytes=2000, available_bytes=available_bytes)  # 500 for a sequence
        found = size_kv_cache(spec, engine_options(max_num_seqs=4, mamba_block_size=40, **options))
        return found.num_snapshots, found.snapshot_tokens, found.num_blocks

    assert size(32_000) == (16, 48, 22)  # never more than 4 batches of them
    assert size(17_000) == (10, 48, 10)
    assert size(10_000) == (2, 48, 7)  # the longest sequence has 7 blocks
    assert "prefix caching is off" not in caplog.text
    assert size(9400) == (0, 0, 7)
    assert "prefix caching is off: there is no room to save states" in caplog.text
    assert size(17_000, enable_prefix_caching=False) == (0, 0, 15)
    assert size(17_000, mamba_cache_mode="none") == (0, 0, 15)


def test_only_the_prefix_cache_has_blocks_elsewhere_and_host_memory_is_sized_once() -> None:
    config = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 10_000}}
    assert size_kv_cache(SPEC, engine_options(kv_transfer_config=config)).num_host_blocks == 10
    with pytest.raises(StartupError, match=r"--kv-transfer-config .* needs --enable-prefix-caching"):
        size_kv_cache(SPEC, engine_options(kv_transfer_config=config, enable_prefix_caching=False))
    for option in ("swap_space", "kv_offloading_size"):
        flag = f"--{option.replace('_', '-')}"
        with pytest.raises(StartupError, match=rf"{flag} and cpu_bytes_to_use .* leave one of them"):
            size_kv_cache(SPEC, engine_options(kv_transfer_config=config, **{option: 1.0}))
        with pytest.raises(StartupError, match=f"{flag} .* needs --enable-prefix-caching"):
            size_kv_cache(SPEC, engine_options(enable_prefix_caching=False, **{option: 1.0}))


def test_the_total_of_host_memory_is_divided_among_ranks() -> None:
    total = 1e6 / 2**30
    alone, ranks = (
        size_kv_cache(SPEC, engine_options(kv_offloading_size=total, tensor_parallel_size=size)) for size in (1, 4)
    )
    assert (alone.num_host_blocks, ranks.num_host_blocks) == (1000, 250)


def test_host_memory_is_divided_like_the_device() -> None:
    def sizes(spec: KvCacheSpec) -> tuple[int, int]:
        found = size_kv_cache(spec, engine_options(max_num_seqs=2, swap_space=1e6 / 2**30))
        return found.num_host_blocks, found.num_host_snapshots

    assert sizes(SPEC) == (1000, 0)
    spec = changed(available_bytes=17_000, state_bytes=2000)  # 10 blocks of 1,000 bytes beside 5 states of as many
    assert sizes(spec) == (666, 333)
    assert sizes(changed(bytes_per_block=0, available_bytes=17_000, state_bytes=2000)) == (56 * 200, 1000)


def test_host_memory_without_room_for_a_block_is_refused() -> None:
    def num_blocks(num_bytes: int, spec: KvCacheSpec = SPEC, **options: Any) -> int:
        return size_kv_cache(spec, engine_options(kv_offloading_size=num_bytes / 2**30, **options)).num_host_blocks

    assert num_blocks(1000) == 1
    with pytest.raises(StartupError, match=r"--kv-offloading-size leaves 999 .* a KV block takes 1000: .* 1000 bytes"):
        num_blocks(999)
    with pytest.raises(StartupError, match=r"leaves 999 .* at least 2000 bytes"):
        num_blocks(1999, tensor_parallel_size=2)
    with pytest.raises(StartupError, match=r"at least 1000 bytes \(0\.000001 GiB\)"):  # rounded up: 1073 bytes
        num_blocks(1)
    assert num_blocks(int(0.000001 * 2**30)) == 1
    with_states = changed(available_bytes=17_000, state_bytes=2000)  # 10 blocks beside 5 states of as many bytes
    assert num_blocks(3000, with_states, max_num_seqs=2) == 2
    with pytest.raises(StartupError, match=r"takes 1000 and the states of recurrent layers 1000: .* 3000 bytes"):
        num_blocks(2999, with_states, max_num_seqs=2)
    # One byte of all is none of each rank's.
    config = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 1}}
    with pytest.raises(StartupError, match=r"cpu_bytes_to_use of OffloadingConnector .* leaves 0 bytes"):
        size_kv_cache(SPEC, engine_options(kv_transfer_config=config, tensor_parallel_size=2))
    with pytest.raises(StartupError, match=r"--swap-space leaves 107 .* at least 1000 bytes"):
        size_kv_cache(SPEC, engine_options(swap_space=1e-7, tensor_parallel_size=2))


def test_where_no_layer_attends_blocks_cost_nothing() -> None:
    found = size_kv_cache(changed(bytes_per_block=0, available_bytes=10, state_bytes=5), engine_options(max_num_seqs=2))
    assert found.num_blocks == 4 * 2 * 7


def test_no_memory_at_all() -> None:
    with pytest.raises(StartupError, match="Not even one block"):
        size_kv_cache(changed(available_bytes=0), EngineOptions())


def test_override_wins_and_cuts_the_length() -> None:
    assert size_kv_cache(SPEC, engine_options(num_gpu_blocks_override=5)) == KvCacheSize(5, 80, 80)
    assert size_kv_cache(SPEC, engine_options(num_gpu_blocks_override=50)) == KvCacheSize(50, 100, 800)


def test_limits_of_partial_prefills_must_fit_together() -> None:
    with pytest.raises(StartupError, match="--enable-chunked-prefill"):
        size_kv_cache(
            SPEC,
            engine_options(enable_chunked_prefill=False, long_prefill_token_threshold=10),
        )
    with pytest.raises(StartupError, match="--max-num-partial-prefills"):
        size_kv_cache(SPEC, engine_options(max_long_partial_prefills=2))


def test_whole_prompts_need_the_budget() -> None:
    options = engine_options(enable_chunked_prefill=False)
    with pytest.raises(StartupError, match="--max-num-batched-tokens"):
        size_kv_cache(changed(max_num_batched_tokens=99), options)
    assert size_kv_cache(changed(max_num_batched_tokens=100), options).num_blocks == 10
