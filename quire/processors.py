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
# Cores kept free for each rank whose threads are bound to their node: for its own event loop and the services beside
# it.
_RESERVED = 1
_MOST = 2**16  # upper bound on Linux's processor numbers

T = TypeVar("T")


@dataclass(frozen=True)
class Processor:
    """A logical processor, as the system schedules threads on; a core with hyperthreads has several."""

    number: int
    core: int  # number of the core's first processor
    node: int


@dataclass(frozen=True)
class Machine:
    """The part of the machine that this process may use.

    Attributes:
        quota: CPU time that the control group allows, in processors; None means no limit.
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
    """Where one rank's threads and memory are placed.

    Attributes:
        processors: numbers of the processors that its threads are bound to; empty if the system chooses.
        nodes: NUMA nodes over which its memory is spread evenly; empty if the system chooses.
    """

    threads: int
    processors: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()


def read_machine(
    system: Path = _SYSTEM, control_group: Path = _CONTROL_GROUP, allowed: Collection[int] | None = None
) -> Machine:
    """Reads the machine's topology and the control group's quota.

    Args:
        system, control_group: the kernel's folders.
        allowed: processors that this process may run on; None means those of its affinity.
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
    """Decides where the threads of one of this machine's ranks run.

    Args:
        bind: --cpu-threads-bind: auto, all, nobind, or lists of processors.
        threads: --cpu-threads; None means one on each core, or processor, that the rank has.
        reserved: --cpu-reserved-cores: number of each rank's cores that are left to others; None means the default.

    Raises:
        StartupError: the lists do not match the ranks or the processors that this process may use.
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
        raise StartupError(f"--cpu-threads is {count}, but {_FLAG} {bind} leaves each rank only {len(own)} processors.")
    nodes = {processor.node for processor in own[:count]}
    return Placement(count, tuple(processor.number for processor in own[:count]), tuple(sorted(nodes)))


def numa_lists(nodes: Sequence[int], cpus: Sequence[str], machine: Machine, ranks: int) -> list[str]:
    """The lists of processors that --numa-bind-nodes and --numa-bind-cpus give the first ranks; empty without either.

    Raises:
        StartupError: there are fewer than ranks, or this process may use none of a node's processors.
    """
    for flag, given in (("--numa-bind-nodes", nodes), ("--numa-bind-cpus", cpus)):
        if given and len(given) < ranks:
            raise StartupError(f"{flag} has {len(given)} values for {ranks} ranks; each rank needs one.")
    found = list(cpus[:ranks])
    for node in nodes[:ranks] if not cpus else ():
        own = [str(processor.number) for processor in machine.processors if processor.node == node]
        if not own:
            raise StartupError(
                f"--numa-bind-nodes names node {node}, but this process may only use processors of the nodes "
                f"{', '.join(map(str, machine.nodes))}."
            )
        found.append(",".join(own))
    return found


def _own_processors(bind: str, machine: Machine, rank: int, ranks: int) -> tuple[Sequence[Processor], bool]:
    """The processors of a rank, and whether its threads are bound to them.

    With several NUMA nodes, each rank gets its own nodes, or a part of one; with a single node there is nothing to
    gain.
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
    """One of `parts` even parts of the items, never empty: if there are too few items, parts share them."""
    start, end = index * len(items) // parts, (index + 1) * len(items) // parts
    return items[start : max(end, start + 1)]


def _listed(bind: str, machine: Machine, ranks: int) -> list[Sequence[Processor]]:
    """Parses the lists of processors in `bind`, one per rank.

    Raises:
        StartupError: see place_rank.
    """
    by_number = {processor.number: processor for processor in machine.processors}
    try:
        lists = [list(dict.fromkeys(_numbers(text))) for text in bind.split("|")]
    except ValueError:
        lists = []
    if not all(lists) or not lists:
        raise StartupError(f"{_FLAG} {bind!r} must be auto, all, nobind, or lists such as 0-31 or 0-15,32|16-31.")
    if len(lists) != ranks:
        raise StartupError(f"{_FLAG} names {len(lists)} lists of processors for {ranks} ranks; each rank needs one.")
    if missing := {number for numbers in lists for number in numbers} - set(by_number):
        raise StartupError(
            f"{_FLAG} names {', '.join(map(str, sorted(missing)))}, but this process may only run on "
            f"{', '.join(map(str, sorted(by_number)))}."
        )
    return [[by_number[number] for number in numbers] for numbers in lists]


def _numbers(text: str) -> Iterator[int]:
    """Parses a list as the kernel writes it: 0-3,8."""
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        if int(last or first) >= _MOST:
            raise ValueError(f"there is no processor {last or first}")
        yield from range(int(first), int(last or first) + 1)


def _quota(control_group: Path) -> float | None:
    """Reads the quota from cpu.max, or from the two files that preceded it in version 1 of control groups."""
    newer, older = control_group / "cpu.max", control_group / "cpu"
    try:
        if newer.exists():
            limit, period = newer.read_text().split()
        else:
            limit, period = ((older / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return None if limit in ("max", "-1") else int(limit) / int(period)
