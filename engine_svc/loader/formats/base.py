"""The contract of a `--load-format`: where the weights are, and how to load them into a model.

The process that answers requests also asks formats for their files but does not load torch. So formats import torch
only where they use it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from engine_svc.loader.source import TensorSource
from quire.errors import StartupError
from quire.options.json_object import check_object
from quire.options.load import LoadOptions

if TYPE_CHECKING:
    from engine_svc.models.decoder import Decoder
    from engine_svc.parallel.group import ParallelGroups


class NoExtra(msgspec.Struct):
    """The extra settings of formats that have none."""


class LoadFormat(ABC):
    """A load format, with one instance for each model and process.

    Attributes:
        patterns: of the files to download from a hub, in addition to the configuration's.
        is_random: there are no weight files; weights are random, from --seed.
        extra_config: the settings allowed in --model-loader-extra-config, with defaults.
    """

    patterns: ClassVar[Sequence[str]] = ()
    is_random: ClassVar[bool] = False
    extra_config: ClassVar[type[msgspec.Struct]] = NoExtra

    def __init__(self, folder: Path, options: LoadOptions) -> None:
        """
        Args:
            folder: of the model.

        Raises:
            StartupError: the format cannot be used here.
        """
        self.folder = folder
        self.options = options
        self.extra: Any = self._read_extra(options)

    @classmethod
    def _read_extra(cls, options: LoadOptions) -> msgspec.Struct:
        given, flag = options.model_loader_extra_config, "--model-loader-extra-config"
        if given and not cls.extra_config.__struct_fields__:
            raise StartupError(f"{flag}: --load-format {options.load_format} has no settings; leave it out.")
        try:
            check_object(given, cls.extra_config)
            return msgspec.convert(given, cls.extra_config)
        except ValueError as error:
            raise StartupError(f"{flag} for --load-format {options.load_format}: {error}") from error

    def found(self, pattern: str) -> list[Path]:
        """The folder's files that match a pattern, in order, without those of --ignore-patterns."""
        ignored = self.options.ignore_patterns
        files = sorted(self.folder.glob(pattern))
        return [file for file in files if not any(fnmatch(file.name, pattern) for pattern in ignored)]

    @abstractmethod
    def files(self) -> Sequence[Path]:
        """The files that the weights are read from, in reading order.

        Raises:
            StartupError: there are none, or one is missing.
        """

    @abstractmethod
    def load(self, model: Decoder, groups: ParallelGroups, seed: int) -> None:
        """Loads this rank's part of the model, and packs its layers.

        Args:
            seed: for random weights.

        Raises:
            StartupError: the weights cannot be read, or do not fit the model.
        """


class CheckpointFormat(LoadFormat, TensorSource):
    """A format whose tensors have the names of Hugging Face checkpoints of the model family."""

    def load(self, model: Decoder, groups: ParallelGroups, seed: int) -> None:
        """See LoadFormat.load."""
        from engine_svc.loader.weights import load_weights

        load_weights(model, self, self.options.use_tqdm_on_load and groups.rank == 0)
