"""Threads of a rank: their number, their processors, and the NUMA nodes of their memory."""

from __future__ import annotations

import ctypes
import logging
import os
import platform

import torch

from quire.errors import StartupError
from quire.options.kernels import KernelOptions
from quire.processors import numa_lists, place_rank, read_machine

logger = logging.getLogger(__name__)

# From the kernel's headers: the system call number of set_mempolicy, and two policies: pages come from some nodes only,
# or are spread over them.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_BIND, _INTERLEAVE = 2, 3


def bind_threads(options: KernelOptions, device: torch.device, rank: int, ranks: int) -> None:
    """Binds this thread, and all threads it will start, to the processors that the options give the rank: on a CPU,
    --cpu-threads-bind or --numa-bind-…; on a GPU, only the latter.

    Memory is allocated on the NUMA node of the thread that first touches it. If the threads of a CPU rank are on
    several nodes, weights and KV cache are spread evenly over them, because any thread may read any part of them.

    Raises:
        StartupError: see place_rank and numa_lists; or both kinds of options are set, or CPU ranks share processors.
    """
    machine = read_machine()
    lists = numa_lists(options.numa_bind_nodes, options.numa_bind_cpus, machine, ranks)
    if device.type != "cpu":
        if lists:
            _bind(place_rank("|".join(lists), machine, rank, ranks).processors)
        if options.numa_bind_nodes:
            _place_memory(_BIND, options.numa_bind_nodes[rank : rank + 1])
        return
    if lists and options.cpu_threads_bind != "auto":
        raise StartupError("--cpu-threads-bind and --numa-bind-… say the same in two ways. Leave one of them out.")
    if len(set(lists)) < len(lists):
        raise StartupError("CPU ranks need processors of their own: divide those of a node with --numa-bind-cpus.")
    place = place_rank(
        "|".join(lists) or options.cpu_threads_bind, machine, rank, ranks,
        threads=options.cpu_threads, reserved=options.cpu_reserved_cores,
    )  # fmt: skip
    _bind(place.processors)
    if len(place.nodes) > 1:
        _place_memory(_INTERLEAVE, place.nodes)
    torch.set_num_threads(place.threads)


def _bind(processors: tuple[int, ...]) -> None:
    if processors:
        os.sched_setaffinity(0, processors)
        logger.info("threads are bound to the processors %s", ", ".join(map(str, processors)))


def _place_memory(policy: int, nodes: tuple[int, ...]) -> None:
    """Has memory that this thread, and threads it will start, first touch be on NUMA nodes, if the system can."""
    number = _SET_MEMPOLICY.get(platform.machine())
    words = [0] * (max(nodes) // 64 + 1)
    for node in nodes:
        words[node // 64] |= 1 << node % 64
    mask = (ctypes.c_ulong * len(words))(*words)
    system = ctypes.CDLL(None, use_errno=True)
    if number is None or system.syscall(number, policy, mask, ctypes.c_ulong(64 * len(words) + 1)) != 0:
        reason = os.strerror(ctypes.get_errno()) if number else f"not known for {platform.machine()}"
        logger.warning("memory cannot be placed on the NUMA nodes %s: %s", ", ".join(map(str, nodes)), reason)
