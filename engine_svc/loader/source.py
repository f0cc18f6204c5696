"""What a checkpoint is to whoever loads it: named tensors, each read as far as it is needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine_svc.layers.parameter import TensorSlice


class TensorSource(ABC):
    """The tensors of a checkpoint by their names in Hugging Face's layout of the model's family.

    Attributes:
        folder: of the checkpoint, for messages.
    """

    folder: Path

    @abstractmethod
    def names(self) -> Mapping[str, Path]:
        """All that there are, and the file that each is in. Costs little: no values are read.

        Raises:
            StartupError: a file is missing or cannot be read.
        """

    @abstractmethod
    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """All of them, in the order in which they are read fastest. A slice is for use until the next one is taken.

        Raises:
            StartupError: a file is missing or cannot be read.
        """

    def own_name(self, name: str) -> str:
        """What the checkpoint itself calls the tensor that has this name here; for messages."""
        return name
