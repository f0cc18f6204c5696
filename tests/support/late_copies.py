"""Copies to a device that is none: they are made as late as they may be, and spoil their rooms as early as they may."""

from __future__ import annotations

import weakref

import pytest
import torch

import engine_svc.loader.host_weights
from engine_svc.layers.host_weights import Copies

_SPOILT = 0xFF  # of floating-point numbers, none


class LateCopies(Copies):
    """The device is the CPU, which has computed all that it was given.

    Attributes:
        log: what was done, by the number that a room and a content have got when they were first seen.
        memory: of the host, as long as somebody has it.
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
    """The CPU is a device with host memory beside it. Gets the copies of each model that is loaded."""
    made: list[LateCopies] = []

    def copies_to(device: torch.device) -> LateCopies:
        made.append(LateCopies())
        return made[-1]

    monkeypatch.setattr(engine_svc.loader.host_weights, "copies_to", copies_to)
    return made
