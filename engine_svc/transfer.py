"""Between host and device without waiting: through pinned memory, in the order of the device's stream."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 16  # bytes: of addresses that it divides Triton's kernels are compiled apart


def to_device(values: Sequence[float] | npt.NDArray[Any] | torch.Tensor, device: torch.device) -> torch.Tensor:
    """The values on the device; on a CPU, an array's or tensor's own memory."""
    tensor = torch.as_tensor(values, device="cpu")
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def to_device_together(arrays: Sequence[npt.ArrayLike], device: torch.device) -> list[torch.Tensor]:
    """Several of them, by one copy; on a CPU, arrays' own memory."""
    tensors = [torch.from_numpy(np.ascontiguousarray(each)) for each in arrays]
    if device.type == "cpu":
        return tensors
    return unpack(pack(tensors, pin_memory=True).to(device, non_blocking=True), tensors)


def copy_to(target: torch.Tensor, values: torch.Tensor) -> None:
    """Bytes of the host to the first of the target; they may be changed at once."""
    target[: len(values)].copy_(values if target.is_cpu else values.pin_memory(), non_blocking=True)


def pack(tensors: Sequence[torch.Tensor], pin_memory: bool = False) -> torch.Tensor:
    """uint8, the memory of contiguous tensors one behind the other; `unpack` finds them there."""
    packed = torch.empty(packed_bytes(tensors), dtype=torch.uint8, pin_memory=pin_memory)
    target = packed.numpy()  # its parts take a third of the time that a tensor's do
    for start, each in zip(_starts(tensors), tensors, strict=True):
        target[start : start + each.nbytes] = each.numpy().reshape(-1).view(np.uint8)
    return packed


def unpack(packed: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of the types and shapes of those that were packed, in the same memory, which is a storage's first."""
    of_type = {dtype: packed.view(dtype) for dtype in {each.dtype for each in like}}
    return [
        of_type[each.dtype].as_strided(each.shape, each.stride(), start // each.itemsize)
        for start, each in zip(_starts(like), like, strict=True)
    ]


def packed_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Of tensors of such types and shapes, once they are packed."""
    return sum(map(_room, tensors))


def _starts(tensors: Sequence[torch.Tensor]) -> list[int]:
    *starts, _ = itertools.accumulate(map(_room, tensors), initial=0)
    return starts


def _room(tensor: torch.Tensor) -> int:
    size: int = tensor.nbytes
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host, which may be read once the device's stream has got that far; on a CPU the tensor itself."""
    if tensor.device.type == "cpu":
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


class Arrival:
    """Of all that the device's stream has been given so far."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None
        if self._event is not None:
            self._event.record()

    @property
    def is_over(self) -> bool:
        """Whether it is done."""
        return self._event is None or self._event.query()

    def wait(self) -> None:
        """Until it is."""
        if self._event is not None:
            self._event.synchronize()


def device_name(device: torch.device) -> str:
    """As people know it."""
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else "cpu"
