"""The interface of a checkpoint for loading: named tensors, of which only the needed parts are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine_svc.layers.parameter import TensorSlice


class TensorSource(ABC):
    """The tensors of a checkpoint by their names in Hugging Face's layout for the model family.

    Attributes:
        folder: of the checkpoint, for messages.
    """

    folder: Path

    @abstractmethod
    def names(self) -> Mapping[str, Path]:
        """The names of all tensors, and the file of each. Cheap: no values are read.

        Raises:
            StartupError: a file is missing or cannot be read.
        """

    @abstractmethod
    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """All tensors, in the order in which reading is fastest. A slice is valid until the next one is taken.

        Raises:
            StartupError: a file is missing or cannot be read.
        """

    def own_name(self, name: str) -> str:
        """The checkpoint's own name of the tensor with this name; for messages."""
        return name
