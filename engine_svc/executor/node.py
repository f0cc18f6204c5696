"""A node other than the first one of an engine: it only has ranks, which belong to node 0's worker."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from engine_svc.executor.channel import Channel
from engine_svc.executor.child import end_children, how_it_ended, start_child_at
from engine_svc.executor.rendezvous import join_first_node
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from quire.supervised import Stage, report

logger = logging.getLogger(__name__)

_RANK = "engine_svc.executor.rank"


def run_node(model: ModelOptions, options: EngineOptions, module: str = _RANK) -> None:
    """Runs this node's ranks, which end with node 0's worker, and then waits for the next worker there, until told to
    end.

    Args:
        module: module that each rank's process runs; see start_child.

    Raises:
        StartupError: node 0 is not there in time, or refuses this node.
    """
    is_told = False
    while not is_told:
        channels = join_first_node(model, options)
        with _first_signal() as signals:
            _run_ranks(channels, options.parallel.nodes.node_rank * len(channels), module)
        is_told = bool(signals)


@contextmanager
def _first_signal() -> Iterator[Sequence[int]]:
    """Catches the first signal that tells this process to end, and no other one.

    Node 0 may be told to end at the same moment, and then needs the ranks until its requests have ended.
    """
    caught: list[int] = []

    def catch(number: int, frame: FrameType | None) -> None:
        restore()
        caught.append(number)
        logger.info("node 0 may still need this node's ranks: they end with its worker, or at a second signal")

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    handlers = {number: signal.signal(number, catch) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield caught
    finally:
        restore()


def _run_ranks(channels: Sequence[Channel], first: int, module: str) -> None:
    """Runs ranks from number `first` on, which receive their commands over these channels, until any of them ends."""
    ranks = {}
    for rank, channel in enumerate(channels, first):
        process = start_child_at(channel, module)
        ranks[process.pid] = rank, process
    logger.info("this node's ranks, from %d to %d, serve node 0", first, first + len(channels) - 1)
    report(Stage.READY)
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    rank, process = ranks[ended.si_pid]
    how = how_it_ended(process)
    if process.returncode:
        logger.critical("rank %d (process %d) %s; this node's other ranks end too", rank, process.pid, how)
    else:
        logger.warning("node 0 has closed the connection; this node's ranks end")
    end_children([process for _, process in ranks.values()])
