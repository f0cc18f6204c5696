"""Threads of a rank that computes on a CPU: their number, their processors, and the NUMA nodes of their memory."""

from __future__ import annotations

import ctypes
import logging
import os
import platform

import torch

from quire.options.kernels import KernelOptions
from quire.processors import place_rank, read_machine

logger = logging.getLogger(__name__)

# From the kernel's headers: the system call number of set_mempolicy, and the policy that spreads pages over nodes.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_INTERLEAVE = 3


def bind_threads(options: KernelOptions, rank: int, ranks: int) -> None:
    """Binds this thread, and all threads it will start, to the processors that --cpu-threads-bind gives the rank.

    Memory is allocated on the NUMA node of the thread that first touches it. If the threads are on several nodes,
    weights and KV cache are spread evenly over them, because any thread may read any part of them.

    Raises:
        StartupError: see place_rank.
    """
    place = place_rank(
        options.cpu_threads_bind, read_machine(), rank, ranks,
        threads=options.cpu_threads, reserved=options.cpu_reserved_cores,
    )  # fmt: skip
    if place.processors:
        os.sched_setaffinity(0, place.processors)
        logger.info("threads are bound to the processors %s", ", ".join(map(str, place.processors)))
    if len(place.nodes) > 1:
        _interleave_memory(place.nodes)
    torch.set_num_threads(place.threads)


def _interleave_memory(nodes: tuple[int, ...]) -> None:
    """Spreads memory first touched by this thread, and threads it will start, over NUMA nodes, if the system can."""
    number = _SET_MEMPOLICY.get(platform.machine())
    words = [0] * (max(nodes) // 64 + 1)
    for node in nodes:
        words[node // 64] |= 1 << node % 64
    mask = (ctypes.c_ulong * len(words))(*words)
    system = ctypes.CDLL(None, use_errno=True)
    if number is None or system.syscall(number, _INTERLEAVE, mask, ctypes.c_ulong(64 * len(words) + 1)) != 0:
        reason = os.strerror(ctypes.get_errno()) if number else f"not known for {platform.machine()}"
        logger.warning("memory cannot be spread over the NUMA nodes %s: %s", ", ".join(map(str, nodes)), reason)
