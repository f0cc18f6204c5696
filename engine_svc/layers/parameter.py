"""Parameters that load their own part of a checkpoint's tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from engine_svc.memory import zeros_when_touched
from engine_svc.quantization.source import TensorSlice as TensorSlice

# (checkpoint tensor, name of the parameter's shard that it is) → None; writes this rank's part.
Load = Callable[[TensorSlice, str], None]


class LoadedParameter(torch.nn.Parameter):
    """A parameter without gradient that carries its loader and knows which shards are still missing.

    It has a shape but no memory until its first shard is loaded, so it can reuse memory that layers loaded and packed
    earlier have freed.
    """

    loader: Load  # by default, loads the whole tensor on every rank
    missing: set[str]
    default: float | None  # value of a parameter that a checkpoint lacks; None means the checkpoint must have it
    _has_zeros: bool

    def __new__(
        cls, shape: Sequence[int], dtype: torch.dtype, device: torch.device, shards: Sequence[str] = ("",)
    ) -> LoadedParameter:
        nothing = torch.empty((), dtype=dtype, device=device).expand(tuple(shape))
        parameter = super().__new__(cls, nothing, requires_grad=False)
        parameter.missing = set(shards)
        parameter.default = None
        parameter._has_zeros = False
        parameter.loader = parameter._load_whole
        return parameter

    def allocate(self) -> None:
        """Allocates its memory, with undefined content but for zeros to keep; does nothing if it is allocated."""
        if self.untyped_storage().nbytes() < self.numel() * self.itemsize:
            on_host = self.device.type == "cpu"  # malloc's heap would end up with a third of the model in gaps
            new = torch.zeros if self._has_zeros else torch.empty
            make = zeros_when_touched if on_host else partial(new, device=self.device)
            self.data = make(self.shape, dtype=self.dtype)

    def keep_zero(self, shard: str) -> None:
        """Tells that checkpoints lack this shard, which is zero."""
        self.missing.discard(shard)
        self._has_zeros = True

    def load(self, source: TensorSlice, part: str) -> None:
        """Writes this rank's part of a checkpoint tensor, which is the shard `part`.

        Raises:
            ValueError, KeyError: the tensor does not fit.
        """
        self.allocate()
        self.loader(source, part)

    def _load_whole(self, source: TensorSlice, part: str) -> None:
        self.write(part, self, source, (slice(None),) * self.dim())

    def fill_missing(self) -> None:
        """Fills a parameter that the checkpoint lacks with its default, if it has one."""
        if self.default is not None:
            self.allocate()
            self.data.fill_(self.default)
            self.missing.clear()

    def write(
        self, name: str, target: torch.Tensor, source: TensorSlice, index: tuple[slice, ...],
        shape: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """Copies a part of a checkpoint tensor to a part of this parameter.

        Args:
            name: of the shard, which is no longer missing then.
            target: the part of this parameter.
            index: of the part in the checkpoint tensor.
            shape: required shape of the whole checkpoint tensor. None means only the part's shape is checked.

        Raises:
            ValueError: the tensor has another shape, or a dtype that cannot be converted.
        """
        found, wanted = list(source.get_shape()), list(shape if shape is not None else target.shape)
        if shape is not None and found != wanted:
            raise ValueError(f"shape {found} in the checkpoint, expected {wanted}")
        part = source[index]
        if part.shape != target.shape:
            raise ValueError(f"shape {found} in the checkpoint does not fit {list(target.shape)}")
        if not _can_become(part.dtype, self.dtype):
            raise ValueError(f"type {_name(part.dtype)} in the checkpoint, expected {_name(self.dtype)}")
        target.copy_(part)
        self.missing.discard(name)

    def fill(self, name: str, target: torch.Tensor, source: TensorSlice) -> None:
        """Fills a part of this parameter with the only number of a checkpoint tensor.

        Raises:
            ValueError: the tensor has several numbers.
        """
        if math.prod(source.get_shape()) != 1:
            raise ValueError(f"shape {list(source.get_shape())} in the checkpoint is not a single number")
        target.fill_(source[...].item())
        self.missing.discard(name)


def _can_become(found: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether a conversion keeps the values' meaning. 8-bit and integer values may be codes that need a scale."""
    if found == wanted or (found == torch.float8_e8m0fnu and wanted == torch.float32):
        return True
    same_kind = found.is_floating_point == wanted.is_floating_point
    return same_kind and min(found.itemsize, wanted.itemsize) > 1


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def take(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Takes the values out of a parameter that is completely loaded; they are freed when the caller drops them."""
    if isinstance(parameter, LoadedParameter):
        del parameter.loader  # refers to the parameter: only the garbage collector would free such a cycle
    return parameter.data
