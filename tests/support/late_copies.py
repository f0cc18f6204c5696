"""Simulated copies to a device, made as late as allowed, whose buffers are overwritten as early as allowed."""

from __future__ import annotations

import weakref

import pytest
import torch

import engine_svc.loader.host_weights
from engine_svc.layers.host_weights import Copies

_SPOILT = 0xFF  # bytes that make NaNs as floating-point numbers


class LateCopies(Copies):
    """Copies to the CPU as if it were a device, which has computed everything that it was given.

    Attributes:
        log: what was done; buffers and contents are numbered in the order in which they were first seen.
        memory: host memory tensors that are still in use.
    """

    def __init__(self) -> None:
        self.log: list[tuple[str, int, int]] = []
        self.memory: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        self._begun: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._follows = False
        self._numbers: dict[int, int] = {}

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        memory = torch.empty(num_bytes, dtype=torch.uint8)
        self.memory.add(memory)
        return memory

    def follow(self) -> None:
        self._follows = True

    def begin(self, room: torch.Tensor, content: torch.Tensor) -> None:
        assert self._follows  # what was computed since
        assert room.shape == content.shape
        self.log.append(("begin", self._number(room), self._number(content)))
        room.fill_(_SPOILT)
        self._begun.append((room, content))

    def wait(self, room: torch.Tensor) -> None:
        self._follows = False
        last = max(index for index, (target, _) in enumerate(self._begun) if target.data_ptr() == room.data_ptr())
        for target, content in self._begun[: last + 1]:
            target.copy_(content)
        self.log.append(("wait", self._number(room), self._number(self._begun[last][1])))
        del self._begun[: last + 1]

    def _number(self, tensor: torch.Tensor) -> int:
        return self._numbers.setdefault(tensor.data_ptr(), len(self._numbers))


@pytest.fixture
def late_copies(monkeypatch: pytest.MonkeyPatch) -> list[LateCopies]:
    """Treats the CPU as a device with separate host memory; the list receives the copies of each loaded model."""
    made: list[LateCopies] = []

    def copies_to(device: torch.device) -> LateCopies:
        made.append(LateCopies())
        return made[-1]

    monkeypatch.setattr(engine_svc.loader.host_weights, "copies_to", copies_to)
    return made
