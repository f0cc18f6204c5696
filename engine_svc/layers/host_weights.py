"""Offloads weights of whole layers to host memory, and copies them to the device in each forward pass.

The device has buffers ("rooms") for two such layers. While one layer computes, the next is copied to the other buffer:
a copy waits for the layer that used the buffer before, and a layer waits for its copy. A layer's weights have the same
device address in every pass, so passes can be captured as CUDA graphs.
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
    """Copies from the host to a device, in order and concurrent with the device's computation."""

    @abstractmethod
    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """Allocates host memory that the device can copy from asynchronously: uint8 [num_bytes]."""

    @abstractmethod
    def follow(self) -> None:
        """Makes copies started from now on wait for all work submitted to the device so far."""

    @abstractmethod
    def begin(self, room: torch.Tensor, content: torch.Tensor) -> None:
        """Starts copying host memory to a device buffer; both uint8 of the same size."""

    @abstractmethod
    def wait(self, room: torch.Tensor) -> None:
        """Makes work submitted to the device from now on wait for the last copy into this buffer."""


class CudaCopies(Copies):
    """Copies on a separate CUDA stream. Each copy gets a new event, as a captured graph keeps its own events."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._ready: dict[int, torch.cuda.Event] = {}  # by the rooms' addresses

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """See Copies.host_memory."""
        memory = torch.empty(num_bytes, dtype=torch.uint8)
        # torch rounds pinned memory up to powers of two, which can double the size of large buffers.
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
    """Copies to a device. None means the device uses host memory itself."""
    return CudaCopies(device) if device.type == "cuda" else None


@dataclass(frozen=True, eq=False)
class _HostLayer:
    """A layer's weights, one after the other in host memory."""

    tensors: Sequence[torch.Tensor]
    content: torch.Tensor  # uint8 [bytes]

    @property
    def starts(self) -> list[int]:
        """The offset of each tensor, and the end of the last one, in bytes."""
        found = [0]
        for tensor in self.tensors:
            found.append(found[-1] + _padded(tensor.nbytes))
        return found

    def views(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Views with the tensors' dtypes and shapes at their offsets in other memory, uint8 [bytes]."""
        return [
            memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for start, tensor in zip(self.starts, self.tensors, strict=False)
        ]


class HostWeights:
    """The offloaded layers of a model on one rank.

    Order of calls: `take` for each part that is packed, then `start`, then passes through all layers in order.
    """

    def __init__(
        self, layers: Sequence[torch.nn.Module], num_bytes: int, copies: Copies, group: tuple[int, int] | None = None
    ) -> None:
        """
        Args:
            layers: the rank's layers, in the order of a pass.
            num_bytes: the most bytes of weights to keep in host memory.
            group: (number of layers in a group, how many at its end to keep there), instead of `num_bytes`.
        """
        self._layers, self._num_bytes, self._copies, self._group = layers, num_bytes, copies, group
        self._parts = [[each for each in layer.modules() if isinstance(each, PackedLayer)] for layer in layers]
        self._layer_of = {part: number for number, parts in enumerate(self._parts) for part in parts}
        self._unpacked = [len(parts) for parts in self._parts]
        self._hosted: dict[int, _HostLayer] = {}
        self._num_packed = self._spent = 0
        self._rooms: Sequence[torch.Tensor] = ()
        self._order: Sequence[int] = ()  # numbers of the layers that are copied
        self._current = -1  # position in `_order` of the layer that is computing

    def take(self, packed: PackedLayer) -> None:
        """Registers a layer's part that has been packed; moves the layer to host memory if it is its turn.

        Layers move once all of their parts are packed: those of `group`, or as many as `num_bytes` allows, at even
        distances, so that computing the layers between them hides the copies.
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
        if size and self._has_turn(number, size):
            self._spent += size
            self._hosted[number] = self._move(tensors, size)

    def _has_turn(self, number: int, size: int) -> bool:
        if self._group is not None:
            group, count = self._group
            return number % group >= group - count
        return self._spent + size <= self._num_bytes * self._num_packed // len(self._layers)

    def _move(self, tensors: Sequence[torch.Tensor], size: int) -> _HostLayer:
        layer = _HostLayer(tensors, self._copies.host_memory(size))
        for tensor, place in zip(tensors, layer.views(layer.content), strict=True):
            place.copy_(tensor)
            # Keeps the shape but frees the device memory; the tensors are not read before `start`.
            tensor.set_(tensor.new_empty(()).expand(tensor.shape))
        return layer

    def start(self, device: torch.device) -> None:
        """Allocates the device buffers and registers the hooks that copy layers during passes."""
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
            "%d of %d layers are kept in host memory, %.2f GiB, and are copied to the device in each forward pass",
            len(self._order), len(self._layers), self._spent / 2**30,
        )  # fmt: skip
        self._layers[0].register_forward_pre_hook(self._begin_pass)
        for position, number in enumerate(self._order):
            self._layers[number].register_forward_pre_hook(self._entering(position))

    def _keep_on_device(self) -> None:
        """Copies the layers to the device for good: each has a buffer of its own."""
        logger.warning(
            "--cpu-offload-gb has no effect: the device keeps room for %d copied layers, and only %d of %d layers "
            "fit into that much host memory; raise it or leave it out",
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
        """The hook before a layer computes: waits for its weights, and starts the copy of the next layer.

        The previous layer is submitted by then, so the copy into its buffer is ordered after it.
        """

        def enter(*_: Any) -> None:
            if position == self._current:  # the layer is computed in several parts
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
        """The buffer of a layer, cut to the length of its weights."""
        return self._rooms[position % ROOMS][: len(self._hosted[self._order[position]].content)]


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _distinct(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The contiguous tensors, without duplicates."""
    return list({id(each): each for each in tensors if each.is_contiguous()}.values())
