"""Threads run on the processors they are told to, and memory is on the corresponding nodes."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch

from engine_svc.runner.threads import _BIND, _INTERLEAVE, _place_memory, bind_threads
from quire.errors import StartupError
from quire.options.kernels import KernelOptions
from quire.processors import read_machine

T = TypeVar("T")
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def in_thread(call: Callable[[], T]) -> T:
    """Runs a call in a new thread, because bindings apply to a thread and those it starts."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_the_threads_of_a_rank_run_where_the_list_says() -> None:
    allowed = os.sched_getaffinity(0)
    own = min(allowed)

    def bind() -> tuple[set[int], set[int], int]:
        bind_threads(KernelOptions(cpu_threads_bind=str(own)), CPU, rank=0, ranks=1)
        found: list[set[int]] = []
        worker = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
        worker.start()
        worker.join()
        return os.sched_getaffinity(0), found[0], torch.get_num_threads()

    assert in_thread(bind) == ({own}, {own}, 1)
    assert os.sched_getaffinity(0) == allowed


def test_nobind_leaves_threads_alone() -> None:
    def bind() -> set[int]:
        bind_threads(KernelOptions(cpu_threads_bind="nobind"), CPU, rank=0, ranks=1)
        return os.sched_getaffinity(0)

    assert in_thread(bind) == os.sched_getaffinity(0)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the system call's number is x86-64's")
def test_memory_is_spread_over_nodes(caplog: pytest.LogCaptureFixture) -> None:
    def spread() -> int:
        _place_memory(_INTERLEAVE, (0,))
        mode = ctypes.c_int(-1)
        assert ctypes.CDLL(None).syscall(239, ctypes.byref(mode), None, 0, None, 0) == 0  # get_mempolicy
        return mode.value

    mode = in_thread(spread)
    if "memory cannot be placed" not in caplog.text:  # containers may forbid it
        assert mode == 3


def test_memory_that_cannot_be_spread_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    in_thread(lambda: _place_memory(_BIND, (63,)))
    assert "memory cannot be placed on the NUMA nodes 63" in caplog.text


@pytest.mark.parametrize("device", [CPU, GPU])
def test_numa_bind_cpus_binds_ranks_of_all_kinds(device: torch.device) -> None:
    own = max(os.sched_getaffinity(0))

    def bind() -> set[int]:
        bind_threads(KernelOptions(numa_bind_cpus=(str(own), "0-9999")), device, rank=0, ranks=1)
        return os.sched_getaffinity(0)

    assert in_thread(bind) == {own}


def test_numa_bind_nodes_binds_a_gpu_rank_to_its_node() -> None:
    machine = read_machine()
    node = machine.nodes[-1]

    def bind() -> set[int]:
        bind_threads(KernelOptions(numa_bind_nodes=(node,)), GPU, rank=0, ranks=1)
        return os.sched_getaffinity(0)

    assert in_thread(bind) == {each.number for each in machine.processors if each.node == node}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (KernelOptions(numa_bind_nodes=(0,)), "--numa-bind-nodes has 1 values for 2 ranks"),
        (KernelOptions(numa_bind_nodes=(0, 63)), "--numa-bind-nodes names node 63"),
        (KernelOptions(numa_bind_cpus=("0", "0")), "CPU ranks need processors of their own"),
        (KernelOptions(numa_bind_cpus=("0", "1"), cpu_threads_bind="0|1"), "in two ways"),
    ],
)
def test_numa_options_that_do_not_fit_are_refused(options: KernelOptions, words: str) -> None:
    with pytest.raises(StartupError, match=words):
        bind_threads(options, CPU, rank=0, ranks=2)
