"""Which processors a rank's threads run on; machines are fake sysfs folders that say what Linux would."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quire.errors import StartupError
from quire.processors import Machine, Placement, place_rank, read_machine


def machine(
    folder: Path,
    nodes: int = 1,
    cores: int = 4,
    hyperthreads: int = 1,
    allowed: set[int] | None = None,
    quota: str = "",
) -> Machine:
    """A machine with `cores` cores per node. As on Linux, second hyperthreads are numbered after all first ones."""
    all_cores = nodes * cores
    for node in range(nodes):
        own = [range(thread * all_cores + node * cores, thread * all_cores + (node + 1) * cores)
               for thread in range(hyperthreads)]  # fmt: skip
        _write(folder / f"node/node{node}/cpulist", ",".join(f"{part[0]}-{part[-1]}" for part in own))
    for number in range(all_cores * hyperthreads):
        siblings = ",".join(str(number % all_cores + thread * all_cores) for thread in range(hyperthreads))
        _write(folder / f"cpu/cpu{number}/topology/thread_siblings_list", siblings)
    if quota:
        _write(folder / "cpu.max", quota)
    return read_machine(folder, folder, range(all_cores * hyperthreads) if allowed is None else allowed)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_this_machine_is_read() -> None:
    found = read_machine()
    assert {processor.number for processor in found.processors} == os.sched_getaffinity(0)
    assert place_rank("auto", found).threads <= len(found.processors)


def test_on_one_node_each_core_gets_a_thread_and_the_system_places_it(tmp_path: Path) -> None:
    laptop = machine(tmp_path, cores=4, hyperthreads=2)
    assert place_rank("auto", laptop) == place_rank("nobind", laptop) == Placement(4)
    assert place_rank("auto", laptop, rank=1, ranks=2) == Placement(2)
    assert place_rank("auto", laptop, reserved=1) == Placement(3)
    assert place_rank("auto", laptop, threads=7) == Placement(7)


def test_ranks_are_bound_to_cores_of_their_own_nodes_but_one(tmp_path: Path) -> None:
    server = machine(tmp_path, nodes=2, cores=4, hyperthreads=2)
    assert place_rank("auto", server, 0, 2) == Placement(3, (0, 1, 2), (0,))
    assert place_rank("auto", server, 1, 2) == Placement(3, (4, 5, 6), (1,))
    assert place_rank("auto", server, 1, 2, reserved=0) == Placement(4, (4, 5, 6, 7), (1,))
    assert place_rank("auto", server, 1, 2, threads=2) == Placement(2, (4, 5), (1,))


def test_one_rank_has_all_nodes_and_its_memory_on_all_of_them(tmp_path: Path) -> None:
    server = machine(tmp_path, nodes=2, cores=4)
    assert place_rank("auto", server) == Placement(7, (0, 1, 2, 3, 4, 5, 6), (0, 1))


def test_more_ranks_than_nodes_share_their_nodes(tmp_path: Path) -> None:
    server = machine(tmp_path, nodes=2, cores=4)
    places = [place_rank("auto", server, rank, 4, reserved=0) for rank in range(4)]
    assert [place.processors for place in places] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    # More ranks than cores: ranks share those as well.
    assert all(place_rank("auto", server, rank, 16).threads == 1 for rank in range(16))


def test_all_binds_to_hyperthreads_too(tmp_path: Path) -> None:
    laptop = machine(tmp_path, cores=2, hyperthreads=2)
    assert place_rank("all", laptop) == Placement(4, (0, 1, 2, 3), (0,))
    assert place_rank("all", laptop, 1, 2) == Placement(2, (2, 3), (0,))


def test_lists_are_taken_as_they_are(tmp_path: Path) -> None:
    server = machine(tmp_path, nodes=2, cores=4)
    assert place_rank("0-2|4,6", server, 0, 2) == Placement(3, (0, 1, 2), (0,))
    assert place_rank("0-2|4,6", server, 1, 2) == Placement(2, (4, 6), (1,))
    assert place_rank("6,2", server) == Placement(2, (6, 2), (0, 1))
    assert place_rank("0-7", server, threads=2) == Placement(2, (0, 1), (0,))


def test_only_what_the_affinity_allows_is_used(tmp_path: Path) -> None:
    half = machine(tmp_path, nodes=2, cores=4, allowed={1, 2, 3})
    assert place_rank("auto", half) == Placement(3)  # one node is left
    with pytest.raises(StartupError, match="names 0, 7, but this process may only run on 1, 2, 3"):
        place_rank("0-1,7", half)


@pytest.mark.parametrize(("quota", "threads"), [("max 100000", 8), ("250000 100000", 3), ("10000 100000", 1)])
def test_the_control_group_limits_threads(tmp_path: Path, quota: str, threads: int) -> None:
    assert place_rank("auto", machine(tmp_path, cores=8, quota=quota)).threads == threads


def test_the_older_control_groups_limit_threads_too(tmp_path: Path) -> None:
    _write(tmp_path / "cpu/cpu.cfs_quota_us", "200000")
    _write(tmp_path / "cpu/cpu.cfs_period_us", "100000")
    assert place_rank("auto", machine(tmp_path, cores=8), rank=0, ranks=2).threads == 1


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        ("numa", "must be auto, all, nobind, or lists"),
        ("", "must be auto, all, nobind, or lists"),
        ("0-1|", "must be auto, all, nobind, or lists"),
        ("3-1", "must be auto, all, nobind, or lists"),
        ("0-99999999999", "must be auto, all, nobind, or lists"),
        ("0|1", "names 2 lists of processors for 1 ranks"),
    ],
)
def test_a_wrong_list_says_what_is_right(tmp_path: Path, bind: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        place_rank(bind, machine(tmp_path))


def test_more_threads_than_the_list_has_processors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        StartupError, match="--cpu-threads is 3, but --cpu-threads-bind 0-1 leaves each rank only 2 processors"
    ):
        place_rank("0-1", machine(tmp_path), threads=3)


def test_a_machine_that_says_nothing_of_its_cores_has_one_for_each_processor(tmp_path: Path) -> None:
    assert place_rank("auto", read_machine(tmp_path, tmp_path, {0, 1, 2})) == Placement(3)
