"""Reads facts about a model's shape from a GGUF file."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import isfinite
from typing import Any

from quire.errors import StartupError
from quire.gguf.files import Gguf
from quire.gguf.types import F32

_MOST_NUMBERS = 1 << 16


@dataclass(frozen=True)
class Facts:
    """Access to the metadata under the model's architecture name, and to tensors."""

    model: Gguf

    @property
    def architecture(self) -> str:
        """The architecture's name in llama.cpp."""
        return self.model.text("general.architecture")

    def find(self, key: str, default: Any = None) -> Any:
        """A number, or a list with the same number for all layers except those that have 0.

        Raises:
            StartupError: the number differs between layers.
        """
        found = self.model.metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(found, list):
            return found
        found = [each for each in found if each] or found[:1]
        if not found or any(each != found[0] for each in found):
            raise StartupError(
                f"{self.model.files[0]}: {self.architecture}.{key} differs between layers ({found[:8]} …), which is "
                "not supported."
            )
        return found[0]

    def pattern(self, key: str) -> list[bool] | int | None:
        """A value that may be a number or a list of booleans for the layers."""
        found = self.model.metadata.get(f"{self.architecture}.{key}")
        return [bool(each) for each in found] if isinstance(found, list) else found

    def need(self, key: str) -> Any:
        """Like `find`, for a required number.

        Raises:
            StartupError: it is missing, or not a number above 0.
        """
        found = self.find(key)
        if not isinstance(found, int | float) or not found > 0:
            raise StartupError(
                f"{self.model.files[0]}: the metadata's {self.architecture}.{key} is {found!r}; expected a number "
                "above 0."
            )
        return found

    def by_layer(self, key: str) -> list[int]:
        """A required number of each layer, which may differ.

        Raises:
            StartupError: it is missing, or not a number above 0 for all layers or each of them.
        """
        found = self.model.metadata.get(f"{self.architecture}.{key}")
        numbers = found[: self.num_layers] if isinstance(found, list) else [found] * self.num_layers
        good = [each for each in numbers if isinstance(each, int) and each > 0]
        if not good or len(good) < self.num_layers:
            raise StartupError(
                f"{self.model.files[0]}: the metadata's {self.architecture}.{key} is {found!r}; expected a number "
                f"above 0, or one for each of the {self.num_layers} layers."
            )
        return good

    def float_by_layer(self, key: str) -> list[float]:
        """A required number of each layer, under a key without the architecture's name.

        Raises:
            StartupError: it is missing, or not a finite number for all layers or each of them.
        """
        found = self.model.metadata.get(key)
        given = found if isinstance(found, list) else [found] * self.num_layers
        numbers = [each for each in given if isinstance(each, float) and isfinite(each)]
        if not len(given) == len(numbers) == self.num_layers:
            raise StartupError(
                f"{self.model.files[0]}: the metadata's {key} is {found!r}; expected a number, or one for each of the "
                f"{self.num_layers} layers."
            )
        return numbers

    @property
    def num_layers(self) -> int:
        """The number of layers, without multi-token prediction layers at the end."""
        count = self.need("block_count") - (self.find("nextn_predict_layers") or 0)
        return max(0, int(count))

    def layers_with(self, tensor: str) -> list[int]:
        """The layers that have a tensor of this name."""
        return [index for index in range(self.num_layers) if self.has(f"blk.{index}.{tensor}")]

    def rows(self, tensor: str) -> int:
        """The number of rows of the tensor in the first layer that has it; 0 if none has."""
        layers = self.layers_with(tensor)
        return self.model.tensors[f"blk.{layers[0]}.{tensor}"].shape[0] if layers else 0

    def has(self, tensor: str) -> bool:
        """Whether there is a tensor of this name."""
        return tensor in self.model.tensors

    def numbers(self, tensor: str) -> list[float]:
        """The values of a short vector.

        Raises:
            StartupError: the tensor is not a vector, too long, or not of F32.
        """
        found = self.model.tensors[tensor]
        if found.type != F32 or len(found.shape) != 1 or found.shape[0] > _MOST_NUMBERS:
            raise StartupError(
                f"{found.file}: {tensor} is {found.type.name} {list(found.shape)}; expected a vector of F32."
            )
        with found.file.open("rb") as opened:
            opened.seek(found.offset)
            return list(struct.unpack(f"<{found.shape[0]}f", opened.read(found.num_bytes)))
