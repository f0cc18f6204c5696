"""Weights of whole layers that lie in host memory, and are copied to the device in each forward pass.

The device has room for two such layers. While one computes, the next one is copied into the other's room: a copy waits
for the layer that was there before, and a layer for its copy. Where a layer's weights are on the device stays the same
from pass to pass, so that passes can be recorded.
"""

from __future__ import annotations

import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine_svc.layers.context import PackedLayer

logger = logging.getLogger(__name__)

ROOMS = 2
_ALIGNMENT = 256  # bytes


class Copies(ABC):
    """Copies from the host to a device, in order, beside what the device computes."""

    @abstractmethod
    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """uint8 [num_bytes], from which the device copies by itself."""

    @abstractmethod
    def follow(self) -> None:
        """Copies that are begun from now on come after all that the device has been given to compute so far."""

    @abstractmethod
    def begin(self, room: torch.Tensor, content: torch.Tensor) -> None:
        """Begins to copy the content of host memory into a room of the device, both uint8 of the same size."""

    @abstractmethod
    def wait(self, room: torch.Tensor) -> None:
        """What the device is given to compute from now on comes after the last copy into this room."""


class CudaCopies(Copies):
    """By a stream of their own. Events are new ones each time: what is recorded keeps its own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._ready: dict[int, torch.cuda.Event] = {}  # by where rooms are

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """See Copies.host_memory."""
        memory = torch.empty(num_bytes, dtype=torch.uint8)
        # torch's own pinned memory is of powers of two, which for what is large may be twice as much.
        runtime: Any = torch.cuda.cudart()
        torch.cuda.check_error(int(runtime.cudaHostRegister(memory.data_ptr(), num_bytes, 0)))
        weakref.finalize(memory, runtime.cudaHostUnregister, memory.data_ptr())
        return memory

    def follow(self) -> None:
        """See Copies.follow."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def begin(self, room: torch.Tensor, content: torch.Tensor) -> None:
        """See Copies.begin."""
        with torch.cuda.stream(self._stream):
            room.copy_(content, non_blocking=True)
            self._ready[room.data_ptr()] = self._stream.record_event()

    def wait(self, room: torch.Tensor) -> None:
        """See Copies.wait."""
        torch.cuda.current_stream(self._stream.device).wait_event(self._ready[room.data_ptr()])


def copies_to(device: torch.device) -> Copies | None:
    """None: the device's memory is the host's."""
    return CudaCopies(device) if device.type == "cuda" else None


@dataclass(frozen=True, eq=False)
class _HostLayer:
    """A layer's weights, one behind the other in host memory."""

    tensors: Sequence[torch.Tensor]
    content: torch.Tensor  # uint8 [bytes]

    @property
    def starts(self) -> list[int]:
        """Where each of them begins, and where the last one ends."""
        found = [0]
        for tensor in self.tensors:
            found.append(found[-1] + _padded(tensor.nbytes))
        return found

    def views(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """The tensors as they would be in other memory, uint8 [bytes]."""
        return [
            memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for start, tensor in zip(self.starts, self.tensors, strict=False)
        ]


class HostWeights:
    """One for each model and rank.

    Order of calls: `take` as each layer is packed, `start` when all are; then passes, each through all layers in order.
    """

    def __init__(self, layers: Sequence[torch.nn.Module], num_bytes: int, copies: Copies) -> None:
        """
        Args:
            layers: of the rank, in the order of a pass.
            num_bytes: of weights that lie in host memory, at most.
        """
        self._layers, self._num_bytes, self._copies = layers, num_bytes, copies
        self._parts = [[each for each in layer.modules() if isinstance(each, PackedLayer)] for layer in layers]
        self._layer_of = {part: number for number, parts in enumerate(self._parts) for part in parts}
        self._unpacked = [len(parts) for parts in self._parts]
        self._hosted: dict[int, _HostLayer] = {}
        self._num_packed = self._spent = 0
        self._rooms: Sequence[torch.Tensor] = ()
        self._order: Sequence[int] = ()  # of the layers that are copied
        self._current = -1  # which of them in this order

    def take(self, packed: PackedLayer) -> None:
        """Tells of a layer's part that has been packed. Once all of them are, the layer goes to host memory if it is
        its turn: as many do as there is room for, at even distances, so that the others' computing hides their copies.
        """
        number = self._layer_of.get(packed)
        if number is None:
            return
        self._unpacked[number] -= 1
        if not self._unpacked[number]:
            self._take_layer(number)

    def _take_layer(self, number: int) -> None:
        self._num_packed += 1
        tensors = _distinct([tensor for part in self._parts[number] for tensor in part.weights()])
        size = sum(_padded(tensor.nbytes) for tensor in tensors)
        if size and self._spent + size <= self._num_bytes * self._num_packed // len(self._layers):
            self._spent += size
            self._hosted[number] = self._move(tensors, size)

    def _move(self, tensors: Sequence[torch.Tensor], size: int) -> _HostLayer:
        layer = _HostLayer(tensors, self._copies.host_memory(size))
        for tensor, place in zip(tensors, layer.views(layer.content), strict=True):
            place.copy_(tensor)
            # Of their shape, without the device's memory: nobody reads them before `start`.
            tensor.set_(tensor.new_empty(()).expand(tensor.shape))
        return layer

    def start(self, device: torch.device) -> None:
        """Makes room on the device, and has passes copy from now on."""
        self._order = sorted(self._hosted)
        size = max((len(layer.content) for layer in self._hosted.values()), default=0)
        self._rooms = [torch.empty(size, dtype=torch.uint8, device=device) for _ in self._order[:ROOMS]]
        for position, number in enumerate(self._order):
            layer = self._hosted[number]
            for tensor, view in zip(layer.tensors, layer.views(self._rooms[position % ROOMS]), strict=True):
                tensor.set_(view)
        if len(self._order) <= ROOMS:
            self._keep_on_device()
            return
        logger.info(
            "%d of %d layers lie in host memory, %.2f GiB, and are copied in each forward pass",
            len(self._order), len(self._layers), self._spent / 2**30,
        )  # fmt: skip
        self._layers[0].register_forward_pre_hook(self._begin_pass)
        for position, number in enumerate(self._order):
            self._layers[number].register_forward_pre_hook(self._entering(position))

    def _keep_on_device(self) -> None:
        """Of layers that all have rooms of their own."""
        logger.warning(
            "--cpu-offload-gb has no effect: the device has room for %d layers that are copied there, and no more than "
            "%d of %d fit into so many bytes of host memory; raise it or leave it out",
            ROOMS, len(self._order), len(self._layers),
        )  # fmt: skip
        for number, room in zip(self._order, self._rooms, strict=True):
            content = self._hosted.pop(number).content
            room[: len(content)].copy_(content)

    def _begin_pass(self, *_: Any) -> None:
        self._current = -1
        self._copies.follow()
        for position in range(ROOMS):
            self._begin(position)

    def _entering(self, position: int) -> Callable[..., None]:
        """What a layer does before it computes: the one before has done, so that its room is free for the next."""

        def enter(*_: Any) -> None:
            if position == self._current:  # computed in parts
                return
            self._current = position
            if 0 < position < len(self._order) - 1:
                self._copies.follow()
                self._begin(position + 1)
            self._copies.wait(self._room(position))

        return enter

    def _begin(self, position: int) -> None:
        self._copies.begin(self._room(position), self._hosted[self._order[position]].content)

    def _room(self, position: int) -> torch.Tensor:
        """That of a layer, as long as its weights."""
        return self._rooms[position % ROOMS][: len(self._hosted[self._order[position]].content)]


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _distinct(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those that kernels read as they lie, each once."""
    return list({id(each): each for each in tensors if each.is_contiguous()}.values())
