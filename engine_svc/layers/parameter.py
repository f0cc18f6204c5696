"""Parameters that find their own part of a checkpoint's tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from engine_svc.memory import zeros_when_touched
from engine_svc.quantization.source import TensorSlice as TensorSlice

# (checkpoint tensor, which of the parameter's shards it is) → writes this rank's part.
Load = Callable[[TensorSlice, str], None]


class LoadedParameter(torch.nn.Parameter):
    """A parameter without gradient that carries its loader and knows which shards it still lacks.

    Until its first shard comes it has a shape and no memory for its values: what a layer that is loaded and packed has
    left behind can be the next one's.
    """

    loader: Load  # that of one which every rank has whole, unless another is set
    missing: set[str]
    default: float | None  # what a shard is that a checkpoint does not have; None: it must

    def __new__(
        cls, shape: Sequence[int], dtype: torch.dtype, device: torch.device, shards: Sequence[str] = ("",)
    ) -> LoadedParameter:
        nothing = torch.empty((), dtype=dtype, device=device).expand(tuple(shape))
        parameter = super().__new__(cls, nothing, requires_grad=False)
        parameter.missing = set(shards)
        parameter.default = None
        parameter.loader = parameter._load_whole
        return parameter

    def allocate(self) -> None:
        """Gives it memory, of no meaning yet; does nothing where it has some."""
        if self.untyped_storage().nbytes() < self.numel() * self.itemsize:
            on_host = self.device.type == "cpu"  # where malloc's heap would come to hold a third of the model in gaps
            make = zeros_when_touched if on_host else partial(torch.empty, device=self.device)
            self.data = make(self.shape, dtype=self.dtype)

    def load(self, source: TensorSlice, part: str) -> None:
        """Writes this rank's part of a checkpoint's tensor, which is the shard `part`.

        Raises:
            ValueError, KeyError: it does not fit.
        """
        self.allocate()
        self.loader(source, part)

    def _load_whole(self, source: TensorSlice, part: str) -> None:
        self.write(part, self, source, (slice(None),) * self.dim())

    def fill_missing(self) -> None:
        """Makes it its default, if it has one: a checkpoint has none of it."""
        if self.default is not None:
            self.allocate()
            self.data.fill_(self.default)
            self.missing.clear()

    def write(
        self, name: str, target: torch.Tensor, source: TensorSlice, index: tuple[slice, ...],
        shape: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """Copies a part of a checkpoint tensor to a part of this one.

        Args:
            shape: that all of the tensor has to have.

        Raises:
            ValueError: it has another shape, or a type that this one cannot have.
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
        """Makes all of a part of this one the only number of a checkpoint tensor.

        Raises:
            ValueError: it has several.
        """
        if math.prod(source.get_shape()) != 1:
            raise ValueError(f"shape {list(source.get_shape())} in the checkpoint is not a single number")
        target.fill_(source[...].item())
        self.missing.discard(name)


def _can_become(found: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether values keep their meaning: those of 8 bits or whole numbers stand for others, by a scale."""
    if found == wanted or (found == torch.float8_e8m0fnu and wanted == torch.float32):
        return True
    same_kind = found.is_floating_point == wanted.is_floating_point
    return same_kind and min(found.itemsize, wanted.itemsize) > 1


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def take(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Its values, into which nothing is loaded any more: they go when whoever takes them has done with them."""
    if isinstance(parameter, LoadedParameter):
        del parameter.loader  # which knows the parameter: only the collector of cycles would find them
    return parameter.data
