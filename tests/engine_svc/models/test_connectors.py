"""Blocks from elsewhere, with a model: tokens do not depend on where a block was computed, or whether it arrived."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine_svc.requests.request import GenerationRequest
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.deepseek_v4 import make_deepseek_v4
from tests.support.remote_connector import Fare, Remote, RemoteConnector, RemoteExecutor
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine, spec_of, tokens
from tests.support.shared_folder import sharing_engine

SHARED, *TAILS = random_prompts(50, 20, 1, 33, seed=11)
PROMPTS = [[*SHARED, *tail] for tail in TAILS]
SHORT = random_prompts(5, seed=12)
BRIEF = replace(GREEDY, max_tokens=20)


@pytest.mark.parametrize("fare", [Fare(0), Fare(5), Fare(3, most=2), Fare(3, most=0), Fare(None, lingers=4)], ids=str)
def test_tokens_are_those_without(model_folder: ModelFolder, fare: Fare) -> None:
    """Prompts computed by one worker continue on another one; blocks arrive late, in part, not at all, or never."""
    folder = model_folder("llama")
    # The clock advances by one at each look, a few times per step.
    remote, clock = Remote(load=lambda key: fare, wait_seconds=60), iter(range(10**9))
    with running_engine(folder) as plain:
        expected = tokens(run(plain, [*PROMPTS, *SHORT], BRIEF))
    with running_engine(folder, executor=RemoteExecutor(remote), connector=RemoteConnector(remote)) as first:
        assert tokens(run(first, PROMPTS, BRIEF)) == expected[:-1]
    with running_engine(
        folder, executor=RemoteExecutor(remote), connector=RemoteConnector(remote), clock=lambda: float(next(clock))
    ) as second:
        assert tokens(run(second, [*PROMPTS, *SHORT], BRIEF)) == expected
        assert second.load().used_kv_blocks == 0
    assert (remote.num_brought > 0) == (fare.steps is not None and fare.most > 0)


def test_what_the_device_forgets_comes_back_while_others_run(model_folder: ModelFolder) -> None:
    """The cache holds a third of the tokens; blocks of preempted sequences are loaded from elsewhere as well."""
    folder = model_folder("llama")
    with running_engine(folder) as plain:
        expected = tokens(run(plain, PROMPTS, BRIEF))
    remote = Remote(load=lambda key: Fare(2), save=lambda key: Fare(3))
    with running_engine(
        folder, num_blocks=24, max_model_len=160, block_size=8, executor=RemoteExecutor(remote),
        connector=RemoteConnector(remote),
    ) as engine:  # fmt: skip
        for _ in range(2):
            assert tokens(run(engine, PROMPTS, BRIEF)) == expected
        assert engine.load().counters.preemptions > 0
    assert remote.num_brought > 0


@pytest.mark.parametrize("steps", range(5))
def test_cancelled_while_it_waits(model_folder: ModelFolder, steps: int) -> None:
    """What the transfer writes afterwards reaches no other sequence, although the cache has no block to spare."""
    folder = model_folder("llama")
    remote = Remote(blocks={})
    with running_engine(folder, executor=RemoteExecutor(remote), connector=RemoteConnector(remote)) as first:
        expected = tokens(run(first, [PROMPTS[2], *SHORT], BRIEF))
    remote.load = lambda key: Fare(3, lingers=3)
    with running_engine(
        folder, num_blocks=20, max_model_len=160, block_size=16, executor=RemoteExecutor(remote),
        connector=RemoteConnector(remote),
    ) as engine:  # fmt: skip
        engine.add(1, GenerationRequest("r", PROMPTS[2], GREEDY))
        for _ in range(steps):
            engine.step()
        engine.abort(1)
        engine.step()
        assert tokens(run(engine, [PROMPTS[2], *SHORT], BRIEF)) == expected
        assert engine.load().used_kv_blocks == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_shared_folder_carries_blocks_to_other_workers(model_folder: ModelFolder, tmp_path: Path, ranks: int) -> None:
    """With --kv-transfer-config, one worker only saves, another one only loads; both compute what one without does."""
    folder = model_folder("llama")
    with running_engine(folder, tensor_parallel_size=ranks) as plain:
        expected = tokens(run(plain, PROMPTS, BRIEF))

    with sharing_engine(folder, tmp_path, "kv_producer", tensor_parallel_size=ranks) as first:
        assert tokens(run(first, PROMPTS, BRIEF)) == expected
    files = len([*tmp_path.glob("quire-kv/alike/*/*.0")])
    assert files == len([*tmp_path.glob(f"quire-kv/alike/*/*.{ranks - 1}")]) > 3
    with sharing_engine(folder, tmp_path, "kv_consumer", tensor_parallel_size=ranks) as second:
        assert tokens(run(second, PROMPTS, BRIEF)) == expected
        counters = second.load().counters
        assert counters.prefix_cache_hits + counters.external_cache_hits >= len(SHARED) // 16 * 16 * len(PROMPTS)
    assert len([*tmp_path.glob("quire-kv/alike/*/*.0")]) == files


@pytest.fixture(params=["mistral", "gemma3", "gemma4", "deepseek-v4"], scope="module")
def windowed(
    request: pytest.FixtureRequest, model_folder: ModelFolder, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Models whose layers all have a window, some have, or those with have other heads; or with compressed entries."""
    if request.param != "deepseek-v4":
        return model_folder(request.param)
    folder = tmp_path_factory.mktemp("deepseek-v4")
    make_deepseek_v4(folder)
    return folder


def test_windows_move_as_well(windowed: Path, tmp_path: Path) -> None:
    """The prompts have half of their tokens in common, and one computed them all."""
    with running_engine(windowed, block_size=4) as plain:
        expected = tokens(run(plain, PROMPTS, BRIEF))
    with sharing_engine(windowed, tmp_path, "kv_producer", block_size=4) as first:
        assert tokens(run(first, PROMPTS[:1], BRIEF)) == expected[:1]
    with sharing_engine(windowed, tmp_path, "kv_consumer", block_size=4) as second:
        assert tokens(run(second, PROMPTS, BRIEF)) == expected
        assert second.load().counters.external_cache_hits >= len(SHARED) // 4 * 4


def test_windows_come_back_from_the_host_tier(windowed: Path) -> None:
    """The device holds a sequence or two; those that others displace or preempt continue with blocks from the host."""
    with running_engine(windowed) as plain:
        expected = tokens(run(plain, PROMPTS))
    groups = len(spec_of(windowed).windows)
    with running_engine(
        windowed, num_blocks=24 * groups, num_host_blocks=200 * groups, max_model_len=160, block_size=8,
        max_num_batched_tokens=32,
    ) as engine:  # fmt: skip
        for _ in range(3):
            assert tokens(run(engine, PROMPTS)) == expected
        assert engine.load().counters.external_cache_hits > 100


# Gated delta nets, Mamba 2 next to attention, convolutions next to sliding windows, and no attention at all.
RECURRENT = ["qwen3.5", "falcon-h1", "lfm3", "mamba2"]
SAVING: dict[str, Any] = {"block_size": 8, "mamba_block_size": 16}


@pytest.mark.parametrize(("family", "ranks"), [*((family, 1) for family in RECURRENT), ("qwen3.5", 2)])
def test_states_move_as_well(model_folder: ModelFolder, tmp_path: Path, family: str, ranks: int) -> None:
    """The consumer begins with the last state that the producer saved of what the prompts have in common."""
    folder = model_folder(family)
    with running_engine(folder, **SAVING) as plain:
        expected = tokens(run(plain, PROMPTS, BRIEF))
    with sharing_engine(folder, tmp_path, "kv_producer", tensor_parallel_size=ranks, **SAVING) as first:
        assert tokens(run(first, [SHARED[:49], PROMPTS[0]], BRIEF))[1:] == expected[:1]
    assert len([*tmp_path.glob(f"quire-kv/alike/*/*-states.{ranks - 1}")]) > 1
    with sharing_engine(folder, tmp_path, "kv_consumer", tensor_parallel_size=ranks, **SAVING) as second:
        assert tokens(run(second, PROMPTS, BRIEF)) == expected
        counters = second.load().counters
        assert counters.external_cache_hits + counters.prefix_cache_hits >= 48 * len(PROMPTS)
        assert counters.external_cache_hits >= 48


@pytest.mark.parametrize("family", RECURRENT)
def test_states_come_back_from_the_host_tier(model_folder: ModelFolder, family: str) -> None:
    """The device has places for two states, and blocks for a sequence or two."""
    folder = model_folder(family)
    with running_engine(folder) as plain:
        expected = tokens(run(plain, PROMPTS, BRIEF))
    groups = len(spec_of(folder).windows)
    with running_engine(
        folder, num_blocks=24 * groups, num_host_blocks=200 * groups, num_snapshots=2, num_host_snapshots=40,
        max_model_len=160, max_num_batched_tokens=32, **SAVING,
    ) as engine:  # fmt: skip
        for _ in range(3):
            assert tokens(run(engine, PROMPTS, BRIEF)) == expected
        assert engine.load().counters.external_cache_hits > 100


# Full attention on two ranks, sliding windows on some layers, and states.
@pytest.mark.parametrize(("family", "ranks"), [("llama", 2), ("gemma3", 1), ("qwen3.5", 1)])
def test_host_memory_and_a_folder_together(model_folder: ModelFolder, tmp_path: Path, family: str, ranks: int) -> None:
    """The device holds a sequence or two, host memory less, and the folder everything. Sequences are preempted."""
    folder = model_folder(family)
    with running_engine(folder, **SAVING) as plain:
        expected = tokens(run(plain, PROMPTS))
    spec = spec_of(folder, **SAVING)
    groups = len(spec.windows)
    with sharing_engine(
        folder, tmp_path, num_blocks=24 * groups - 4, num_host_blocks=7 * groups, num_snapshots=3,
        num_host_snapshots=4, max_model_len=160, max_num_batched_tokens=32, tensor_parallel_size=ranks, **SAVING,
    ) as engine:  # fmt: skip
        for _ in range(3):
            assert tokens(run(engine, PROMPTS)) == expected
        counters = engine.load().counters
    assert counters.preemptions > 0
    assert 0 < counters.host_cache_hits < counters.external_cache_hits
    moved = counters.host_saved_bytes, counters.host_loaded_bytes, counters.storage_loaded_bytes
    assert min(moved) >= spec.bytes_per_block // ranks
    assert counters.storage_saved_bytes == _size(tmp_path) // ranks


def _size(folder: Path) -> int:
    """Bytes of the blocks in a folder, without their checksums."""
    return sum(path.stat().st_size - 4 for path in folder.glob("quire-kv/alike/*/*"))
