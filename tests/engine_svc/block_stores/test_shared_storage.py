"""Blocks as files: what is read is what was written, by whomever, or nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from engine_svc.attention.base import AttentionBackend, AttentionShape
from engine_svc.attention.registry import create_backend
from engine_svc.block_stores import shared_storage
from engine_svc.block_stores.block_files import BlockFiles
from engine_svc.block_stores.movable import Items, Movable
from engine_svc.block_stores.shared_storage import MovableBlocks, SharedStorage
from engine_svc.plan import NO_TRANSFERS, BlockTransfer, EndedTransfer, Transfers
from quire.options.kv_transfer import ExtraConfig

PLACES = [b"alike/ab/abcd", b"alike/cd/cdef", b"alike/ef/ef01"]


def filled(backend: str, dtype: torch.dtype, first: float) -> tuple[AttentionBackend, list[torch.Tensor]]:
    """Caches of two layers; block n of layer m has the value first + 10 m + n."""
    attention = create_backend(backend, AttentionShape(2, 1, 8, 4, dtype, torch.device("cpu")), None)
    caches = attention.allocate(4, 2)
    for layer, cache in enumerate(caches):
        for block in range(4):
            cache.select(attention.block_dimension, block).fill_(first + 10 * layer + block)
    return attention, caches


def movable(
    attention: AttentionBackend, caches: list[torch.Tensor], states: Sequence[torch.Tensor] = ()
) -> MovableBlocks:
    items = Items(caches, attention.block_dimension)
    return MovableBlocks(Movable(items, Items(states, 0), 4, torch.device("cpu")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["reference", "cpu", "triton"])
def test_one_worker_reads_what_another_wrote(tmp_path: Path, backend: str, dtype: torch.dtype) -> None:
    (attention, caches), (other, others) = filled(backend, dtype, 1), filled(backend, dtype, 50)
    blocks, at = movable(attention, caches), attention.block_dimension
    with ThreadPoolExecutor(1) as threads:
        store = SharedStorage(blocks, BlockFiles(tmp_path, 0, 2**30), threads, threads)
        store.begin(Transfers(saves=[BlockTransfer([3, 1], PLACES[:2], 1)]))
        assert store.take_ended() == [EndedTransfer(1, 2)]
        for cache in caches:
            cache.fill_(-1)  # overwritten at once
    with ThreadPoolExecutor(1) as threads:
        reader = SharedStorage(movable(other, others), BlockFiles(tmp_path, 0, 2**30), threads, threads)
        reader.begin(Transfers(loads=[BlockTransfer([0, 2, 1], PLACES, 7)]))
        threads.submit(lambda: None).result()
        reader.begin(NO_TRANSFERS)
        assert reader.take_ended() == [EndedTransfer(7, 2)]  # the third is not there
    values = [[float(cache.select(at, block).float().mean()) for block in range(4)] for cache in others]
    assert values == [[4, 51, 2, 53], [14, 61, 12, 63]]


def test_states_are_numbered_after_blocks(tmp_path: Path) -> None:
    (attention, caches), (other, others) = filled("cpu", torch.float32, 1), filled("cpu", torch.float32, 50)
    states, more = ([torch.full((3, 5), value), torch.full((3, 2, 7), value)] for value in (7.0, 8.0))
    states[1][2] = 9
    at = attention.block_dimension
    with ThreadPoolExecutor(1) as threads:
        store = SharedStorage(movable(attention, caches, states), BlockFiles(tmp_path, 0, 2**30), threads, threads)
        store.begin(Transfers(saves=[BlockTransfer([2], PLACES[:1], 1), BlockTransfer([6], PLACES[1:2], 2)]))
    with ThreadPoolExecutor(1) as threads:
        reader = SharedStorage(movable(other, others, more), BlockFiles(tmp_path, 0, 2**30), threads, threads)
        reader.begin(Transfers(loads=[BlockTransfer([0, 4], PLACES[:2], 3)]))
        threads.submit(lambda: None).result()
        reader.begin(NO_TRANSFERS)
        assert reader.take_ended() == [EndedTransfer(3, 2)]
    assert [float(cache.select(at, 0).mean()) for cache in others] == [3, 13]
    assert more[0][:, 0].tolist() == [7, 8, 8]
    assert more[1][:, 0, 0].tolist() == [9, 8, 8]
    names = sorted(path.stat().st_size for path in tmp_path.glob("*/*/*"))
    assert names == [(5 + 14) * 4 + 4, 2 * 2 * 4 * 8 * 4 + 4]


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Threads wait for it."""
    event = threading.Event()
    yield event
    event.set()


def test_more_than_may_wait_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: threading.Event
) -> None:
    attention, caches = filled("reference", torch.float32, 0)
    blocks = movable(attention, caches)
    monkeypatch.setattr(shared_storage, "_MOST_WAITING_BYTES", 2 * blocks.num_bytes(0))
    with ThreadPoolExecutor(1) as threads:
        threads.submit(held.wait)
        store = SharedStorage(blocks, BlockFiles(tmp_path, 0, 2**30), threads, threads)
        for key, place in enumerate(PLACES, 1):
            store.begin(Transfers(saves=[BlockTransfer([0], [place], key)]))
        assert store.take_ended() == [EndedTransfer(1, 1), EndedTransfer(2, 1), EndedTransfer(3, 0)]
        held.set()
    assert [(tmp_path / f"{place.decode()}.0").exists() for place in PLACES] == [True, True, False]


def test_a_cancelled_load_ends_without_touching_its_blocks(tmp_path: Path, held: threading.Event) -> None:
    attention, caches = filled("reference", torch.float32, 0)
    blocks, before = movable(attention, caches), [cache.clone() for cache in caches]
    files = BlockFiles(tmp_path, 0, 2**30)
    files.write(PLACES[0].decode(), [bytes(blocks.num_bytes(0))], 1)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(held.wait)
        store = SharedStorage(blocks, files, threads, threads)
        store.begin(Transfers(loads=[BlockTransfer([0], PLACES[:1], 3)]))
        store.begin(Transfers(cancelled=[3, 4]))
        assert store.take_ended() == [EndedTransfer(3, 0), EndedTransfer(4, 0)]
        held.set()
    store.begin(NO_TRANSFERS)
    assert store.take_ended() == []
    assert all(torch.equal(cache, old) for cache, old in zip(caches, before, strict=True))


def test_a_storage_that_refuses_is_reported_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    attention, caches = filled("reference", torch.float32, 0)
    blocks = movable(attention, caches)
    (tmp_path / "alike").write_text("in the way")
    with ThreadPoolExecutor(1) as threads:
        store = SharedStorage(blocks, BlockFiles(tmp_path, 0, 2**30), threads, threads)
        for key in (1, 2):
            store.begin(Transfers(saves=[BlockTransfer([0], [PLACES[0]], key)]))
    assert caplog.text.count("cannot be written to shared storage") == 1


def test_files_of_another_size_are_not_read(tmp_path: Path) -> None:
    BlockFiles(tmp_path, 0, 2**30).write("a/b", [b"12", b"34"], 5)
    assert bytes(BlockFiles(tmp_path, 0, 2**30).read("a/b", 4) or b"") == b"1234"
    assert (tmp_path / "a" / "b.0").stat().st_mtime_ns == 5
    assert BlockFiles(tmp_path, 0, 2**30).read("a/b", 8) is None


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path, 0, 1000)
    for number in range(9):
        files.write(f"n/{number}", [bytes(100)], 1)
        os.utime(tmp_path / "n" / f"{number}.0", ns=(number, 1))
    assert files.read("n/0", 100)
    for number in range(9, 40):
        files.write(f"n/{number}", [bytes(100)], 1)
        os.utime(tmp_path / "n" / f"{number}.0", ns=(number, 1))
    kept = {path.name for path in (tmp_path / "n").iterdir()}
    assert "0.0" in kept and "39.0" in kept and "1.0" not in kept
    assert len(kept) <= 10


def test_a_block_that_lost_its_contents_is_not_read_and_no_longer_found(tmp_path: Path) -> None:
    """Otherwise nobody would ever save it anew."""
    first, second = (BlockFiles(tmp_path, rank, 2**30) for rank in range(2))
    for files in (first, second):
        files.write("a/b", [b"1234"], 5)
    path = tmp_path / "a" / "b.1"
    path.write_bytes(b"\0" * len(path.read_bytes()))
    assert first.read("a/b", 4) == b"1234"
    assert second.read("a/b", 4) is None
    assert not (tmp_path / "a" / "b.0").exists()
    second.write("a/b", [b"5678"], 5)
    assert second.read("a/b", 4) == b"5678"


def test_a_block_that_a_rank_has_yet_to_write_stays_findable(tmp_path: Path) -> None:
    first, second = (BlockFiles(tmp_path, rank, 2**30) for rank in range(2))
    first.write("a/b", [b"1234"], time.time_ns())
    assert second.read("a/b", 4) is None
    assert first.read("a/b", 4) == b"1234"


def test_long_loads_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attention, caches = filled("reference", torch.float32, 1)
    blocks, at = movable(attention, caches), attention.block_dimension
    monkeypatch.setattr(shared_storage, "_PIECE_BYTES", 2 * blocks.num_bytes(0))
    files = BlockFiles(tmp_path, 0, 2**30)
    with ThreadPoolExecutor(1) as threads:
        store = SharedStorage(blocks, files, threads, threads)
        store.begin(Transfers(saves=[BlockTransfer([3, 1, 2], PLACES, 1)]))
        threads.submit(lambda: None).result()
        for cache in caches:
            cache.fill_(-1)
        store.begin(Transfers(loads=[BlockTransfer([0, 1, 2, 3], [*PLACES, b"alike/00/00"], 2)]))
        ends = []
        while len(ends) < 2:
            threads.submit(lambda: None).result()
            store.begin(NO_TRANSFERS)
            ends += store.take_ended()
    assert ends == [EndedTransfer(1, 3), EndedTransfer(2, 3)]
    assert [float(caches[0].select(at, block).mean()) for block in range(4)] == [4, 2, 3, -1]


def test_nothing_but_its_own_folder_is_cleared() -> None:
    assert ExtraConfig(shared_storage_path="/data").folder == Path("/data/quire-kv")
