"""The threads of a rank that computes on a CPU: how many, on which processors, and with their memory near."""

from __future__ import annotations

import ctypes
import logging
import os
import platform

import torch

from engine_svc.loader.model import LoadedModel
from quire.options.kernels import KernelOptions
from quire.processors import place_rank, read_machine

logger = logging.getLogger(__name__)

# Smaller models run on one core of a CPU: the threads of a parallel region wait for the next one by spinning,
# which takes more from the services beside the engine than it gives to so short a step.
_ONE_CORE = 32e6
# Of the kernel's headers: the number of set_mempolicy, and the policy that spreads pages over nodes.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_INTERLEAVE = 3


def bind_threads(options: KernelOptions, rank: int, ranks: int) -> None:
    """Binds this thread, and all those that it will start, to the processors that --cpu-threads-bind gives the rank.

    Memory is on the node of the thread that first touches it. Where that is not one node, weights and KV cache are
    spread evenly, as any thread may come to read any part of them.

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


def set_step_threads(options: KernelOptions, loaded: LoadedModel) -> None:
    """How many threads share the steps of a model that is loaded."""
    if options.cpu_threads is None and loaded.num_weights < _ONE_CORE:
        torch.set_num_threads(1)
    if loaded.attention.kernels is not None:
        loaded.attention.kernels.set_threads(torch.get_num_threads())


def _interleave_memory(nodes: tuple[int, ...]) -> None:
    """Spreads what this thread, and those that it will start, touch first over NUMA nodes, if the system lets them."""
    number = _SET_MEMPOLICY.get(platform.machine())
    words = [0] * (max(nodes) // 64 + 1)
    for node in nodes:
        words[node // 64] |= 1 << node % 64
    mask = (ctypes.c_ulong * len(words))(*words)
    system = ctypes.CDLL(None, use_errno=True)
    if number is None or system.syscall(number, _INTERLEAVE, mask, ctypes.c_ulong(64 * len(words) + 1)) != 0:
        reason = os.strerror(ctypes.get_errno()) if number else f"not known for {platform.machine()}"
        logger.warning("memory is not spread over the NUMA nodes %s: %s", ", ".join(map(str, nodes)), reason)
