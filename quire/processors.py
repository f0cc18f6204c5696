"""The processors that this process may use, by core and NUMA node, and which of them each rank's threads run on."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from quire.errors import StartupError

_SYSTEM = Path("/sys/devices/system")
_CONTROL_GROUP = Path("/sys/fs/cgroup")
_FLAG = "--cpu-threads-bind"
# Of each rank, where its threads are bound to their node: for its own event loop and the services beside it.
_RESERVED = 1
_MOST = 2**16  # processors that Linux can number

T = TypeVar("T")


@dataclass(frozen=True)
class Processor:
    """One that the system schedules threads on; those of a core with hyperthreads are several."""

    number: int
    core: int  # number of the core's first processor
    node: int


@dataclass(frozen=True)
class Machine:
    """What this process may use of it, whatever there is beside.

    Attributes:
        quota: processors' worth of time that the control group allows; None if it sets no limit.
    """

    processors: tuple[Processor, ...]
    quota: float | None = None

    @property
    def cores(self) -> tuple[Processor, ...]:
        """The first processor of each core."""
        first = {processor.core: processor for processor in reversed(self.processors)}
        return tuple(sorted(first.values(), key=lambda processor: (processor.node, processor.number)))

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({processor.node for processor in self.processors}))


@dataclass(frozen=True)
class Placement:
    """Of one rank's threads.

    Attributes:
        processors: numbers of those that its threads are bound to; none where the system chooses.
        nodes: where its memory is, evenly; none where the system chooses.
    """

    threads: int
    processors: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()


def read_machine(
    system: Path = _SYSTEM, control_group: Path = _CONTROL_GROUP, allowed: Collection[int] | None = None
) -> Machine:
    """
    Args:
        system, control_group: folders of the kernel's.
        allowed: processors that this process may run on; by default, those of its affinity.
    """
    nodes = {
        number: int(folder.name.removeprefix("node"))
        for folder in system.glob("node/node[0-9]*")
        for number in _numbers((folder / "cpulist").read_text())
    }
    found = []
    for number in sorted(os.sched_getaffinity(0) if allowed is None else allowed):
        siblings = system / f"cpu/cpu{number}/topology/thread_siblings_list"
        core = min(_numbers(siblings.read_text())) if siblings.exists() else number
        found.append(Processor(number, core, nodes.get(number, 0)))
    return Machine(tuple(found), _quota(control_group))


def place_rank(
    bind: str, machine: Machine, rank: int = 0, ranks: int = 1, *, threads: int | None = None,
    reserved: int | None = None,
) -> Placement:  # fmt: skip
    """Where the threads of one of the ranks of this machine run.

    Args:
        bind: --cpu-threads-bind: auto, all, nobind, or lists of processors.
        threads: --cpu-threads; by default one on each core, or processor, that the rank has.
        reserved: --cpu-reserved-cores: cores of each rank that are left to others.

    Raises:
        StartupError: lists do not go with the ranks or with what this process may use.
    """
    if bind in ("auto", "all", "nobind"):
        own, bound = _own_processors(bind, machine, rank, ranks)
        kept = (_RESERVED if bound and bind == "auto" else 0) if reserved is None else reserved
        own = own[: max(1, len(own) - kept)]
    else:
        own, bound = _listed(bind, machine, ranks)[rank], True
    most = len(own) if machine.quota is None else max(1, min(len(own), math.ceil(machine.quota / ranks)))
    count = threads or most
    if not bound:
        return Placement(count)
    if count > len(own):
        raise StartupError(f"--cpu-threads {count}, but {_FLAG} {bind} leaves a rank {len(own)} processors.")
    nodes = {processor.node for processor in own[:count]}
    return Placement(count, tuple(processor.number for processor in own[:count]), tuple(sorted(nodes)))


def _own_processors(bind: str, machine: Machine, rank: int, ranks: int) -> tuple[Sequence[Processor], bool]:
    """Those of a rank, and whether its threads are bound to them.

    With several NUMA nodes each rank gets its own ones, or its part of one; in one there is nothing to gain.
    """
    count = len(machine.nodes)
    if bind == "all":
        return _part(machine.processors, rank, ranks), True
    if bind == "nobind" or count == 1:
        return _part(machine.cores, rank, ranks), False
    if ranks <= count:
        own = set(_part(machine.nodes, rank, ranks))
        return [core for core in machine.cores if core.node in own], True
    node = rank * count // ranks
    neighbours = [other for other in range(ranks) if other * count // ranks == node]
    cores = [core for core in machine.cores if core.node == machine.nodes[node]]
    return _part(cores, neighbours.index(rank), len(neighbours)), True


def _part(items: Sequence[T], index: int, parts: int) -> Sequence[T]:
    """One of so many even parts, never empty: where there are too few, they are shared."""
    start, end = index * len(items) // parts, (index + 1) * len(items) // parts
    return items[start : max(end, start + 1)]


def _listed(bind: str, machine: Machine, ranks: int) -> list[Sequence[Processor]]:
    """
    Raises:
        StartupError: see place_rank.
    """
    by_number = {processor.number: processor for processor in machine.processors}
    try:
        lists = [list(dict.fromkeys(_numbers(text))) for text in bind.split("|")]
    except ValueError:
        lists = []
    if not all(lists) or not lists:
        raise StartupError(f"{_FLAG} {bind!r} is neither auto, all, nobind nor lists such as 0-31 or 0-15,32|16-31.")
    if len(lists) != ranks:
        raise StartupError(f"{_FLAG} names {len(lists)} lists of processors for {ranks} ranks: one is needed for each.")
    if missing := {number for numbers in lists for number in numbers} - set(by_number):
        raise StartupError(
            f"{_FLAG} names {', '.join(map(str, sorted(missing)))}, and this process may run on "
            f"{', '.join(map(str, sorted(by_number)))} alone."
        )
    return [[by_number[number] for number in numbers] for numbers in lists]


def _numbers(text: str) -> Iterator[int]:
    """Those of a list as the kernel writes it: 0-3,8."""
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        if int(last or first) >= _MOST:
            raise ValueError(f"there is no processor {last or first}")
        yield from range(int(first), int(last or first) + 1)


def _quota(control_group: Path) -> float | None:
    """What cpu.max says, or the two files that stood for it in the first version of control groups."""
    newer, older = control_group / "cpu.max", control_group / "cpu"
    try:
        if newer.exists():
            limit, period = newer.read_text().split()
        else:
            limit, period = ((older / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return None if limit in ("max", "-1") else int(limit) / int(period)
