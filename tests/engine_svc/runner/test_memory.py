"""How much of a GPU's memory a worker takes for its KV cache, and when it refuses to start."""

from __future__ import annotations

import pytest
import torch

from engine_svc.runner.memory import GpuMemory, gpu_budget, kv_cache_bytes
from quire.errors import StartupError
from quire.options.cache import CacheOptions

GIB = 2**30


def memory(free: float, held: float, peak: float) -> GpuMemory:
    return GpuMemory(total=80 * GIB, free=int(free * GIB), held=int(held * GIB), peak=int(peak * GIB))


def test_alone_on_a_gpu() -> None:
    assert gpu_budget(memory(free=62.5, held=17, peak=20), 0.9) == 52 * GIB


def test_two_workers_share_a_gpu() -> None:
    """The second finds the first one's half in use, and gets its own half less what the driver takes."""
    first = gpu_budget(memory(free=62.5, held=17, peak=20), 0.5)
    assert first == 20 * GIB
    second = gpu_budget(memory(free=80 - 40 - 1 - 17, held=17, peak=20), 0.5)
    assert 0.85 * first < second < first
    assert second + 3 * GIB < 22 * GIB


def test_never_more_than_is_free() -> None:
    assert gpu_budget(memory(free=10, held=10, peak=12), 0.9) < 8 * GIB


def test_who_holds_what() -> None:
    with pytest.raises(StartupError, match=r"allows this process 16.0 GiB of 80.0 GiB.* need 20.0 GiB.* or raise"):
        gpu_budget(memory(free=60, held=18, peak=20), 0.2)
    with pytest.raises(StartupError, match=r"the driver hold 60.0 GiB, and 2.0 GiB are free.* or stop other processes"):
        gpu_budget(memory(free=2, held=18, peak=20), 0.9)


def test_on_a_cpu_states_have_room_beside_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_svc.runner.memory.available_bytes", lambda: 20 * GIB)
    cpu = torch.device("cpu")
    assert kv_cache_bytes(CacheOptions(), cpu) == 2 * GIB
    assert kv_cache_bytes(CacheOptions(), cpu, state_bytes=7 * GIB) == 9 * GIB
    assert kv_cache_bytes(CacheOptions(), cpu, state_bytes=70 * GIB) == 12 * GIB
    assert kv_cache_bytes(CacheOptions(kv_cache_memory_bytes=GIB), cpu, state_bytes=7 * GIB) == GIB


class SharedGpu:
    """torch.cuda's figures for processes that share one GPU of 80 GiB, of which the driver takes 0.5 GiB for each."""

    def __init__(self, processes: int) -> None:
        self.held = [0] * processes
        self.peak = [0] * processes
        self.current = 0

    def take(self, process: int, num_bytes: int, passing: int = 0) -> None:
        """Keeps `num_bytes`, and briefly needs `passing` more."""
        self.held[process] += num_bytes
        self.peak[process] = max(self.peak[process], self.held[process] + passing)

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        contexts = sum(GIB // 2 for held in self.held if held)
        return 80 * GIB - sum(self.held) - contexts, 80 * GIB

    def memory_reserved(self, device: torch.device) -> int:
        return self.held[self.current]

    def max_memory_reserved(self, device: torch.device) -> int:
        return self.peak[self.current]


@pytest.mark.parametrize("order", ["AABB", "ABAB", "ABBA", "BAAB"])
def test_two_at_045_fit_on_one_gpu_in_any_order(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """Each letter is a process: it loads the first time, and sizes its cache the second time. Both get the same."""
    gpu = SharedGpu(2)
    for name in ("mem_get_info", "memory_reserved", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    caches: dict[int, int] = {}
    for letter in order:
        gpu.current = process = "AB".index(letter)
        if not gpu.held[process]:
            gpu.take(process, 17 * GIB, passing=2 * GIB)
        else:
            options = CacheOptions(gpu_memory_utilization=0.45)
            caches[process] = kv_cache_bytes(options, torch.device("cuda", 0), later_bytes=GIB)
            gpu.take(process, caches[process])
    assert caches == {0: int(80 * GIB * 0.45) - 20 * GIB, 1: int(80 * GIB * 0.45) - 20 * GIB}
    assert gpu.mem_get_info(torch.device("cuda", 0))[0] > 0
