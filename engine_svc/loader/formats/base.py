"""The contract of a `--load-format`: where the weights are, and how they get from there into a model.

The process that answers requests asks formats for their files and has no torch: what a format needs of it is imported
where it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from engine_svc.loader.source import TensorSource
from quire.options.load import LoadOptions

if TYPE_CHECKING:
    from engine_svc.models.decoder import Decoder
    from engine_svc.parallel.group import ParallelGroups


class LoadFormat(ABC):
    """One for each model and process.

    Attributes:
        patterns: of the files that it needs of a model on the hub, beside the configuration's.
        is_random: there are no weights, they are made up from --seed.
    """

    patterns: ClassVar[Sequence[str]] = ()
    is_random: ClassVar[bool] = False

    def __init__(self, folder: Path, options: LoadOptions) -> None:
        """
        Args:
            folder: of the model.

        Raises:
            StartupError: the format cannot be used here.
        """
        self.folder = folder
        self.options = options

    @abstractmethod
    def files(self) -> Sequence[Path]:
        """Those that the weights are read from, in that order.

        Raises:
            StartupError: there are none, or one is missing.
        """

    @abstractmethod
    def load(self, model: Decoder, groups: ParallelGroups, seed: int) -> None:
        """Fills this rank's part of the model, and packs its layers.

        Args:
            seed: of random weights.

        Raises:
            StartupError: the weights cannot be read, or are not those of the model.
        """


class CheckpointFormat(LoadFormat, TensorSource):
    """A format whose tensors have the names that Hugging Face's checkpoints of the family give them."""

    def load(self, model: Decoder, groups: ParallelGroups, seed: int) -> None:
        """See LoadFormat.load."""
        from engine_svc.loader.weights import load_weights

        load_weights(model, self, self.options.use_tqdm_on_load and groups.rank == 0)
