"""`--load-format sharded_state`: each rank's parameters, already sharded, in separate files for each rank.

`quire save-sharded-state` writes them for a fixed number of ranks, from a checkpoint format. A rank reads only its
own files, whole and in order, without slicing or joining tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec

from engine_svc.loader.formats.base import LoadFormat
from engine_svc.loader.formats.safetensors_files import opened
from engine_svc.loader.source import TensorSource
from engine_svc.parallel.layout import ParallelLayout
from quire.errors import StartupError

if TYPE_CHECKING:
    from engine_svc.layers.parameter import TensorSlice
    from engine_svc.models.decoder import Decoder
    from engine_svc.parallel.group import ParallelGroups

PATTERN = "model-rank-{rank}-part-{part}.safetensors"


class Extra(msgspec.Struct):
    """The settings of --model-loader-extra-config."""

    pattern: str = PATTERN


class ShardedState(LoadFormat):
    """See LoadFormat."""

    patterns: ClassVar[Sequence[str]] = ("*.safetensors",)
    extra_config: ClassVar[type[msgspec.Struct]] = Extra

    def files(self) -> Sequence[Path]:
        """The files of all ranks."""
        files = [file for file in self.found("*.safetensors") if self._rank_of(file) is not None]
        if not files:
            raise StartupError(
                f"{self.folder} has no files named {self._pattern}. `quire save-sharded-state` writes them; set "
                "pattern in --model-loader-extra-config if they have other names."
            )
        return files

    def load(self, model: Decoder, groups: ParallelGroups, seed: int) -> None:
        """See LoadFormat.load."""
        from engine_svc.loader.weights import load_parameters

        files = self.files()
        ranks = {self._rank_of(file) for file in files}
        check_shared(groups.layout)
        count = groups.layout.num_ranks
        if ranks != set(range(count)):
            held = ", ".join(map(str, sorted(rank for rank in ranks if rank is not None)))
            raise StartupError(
                f"{self.folder} has the files of the ranks {held}, but --tensor-parallel-size x "
                f"--pipeline-parallel-size is {count}, which needs those of 0 to {count - 1}. Save them again for "
                "that many ranks, or run as many ranks as they were saved for."
            )
        own = [file for file in files if self._rank_of(file) == groups.rank]
        load_parameters(model, self.shard(own), self.options.use_tqdm_on_load and groups.rank == 0)

    def shard(self, files: Sequence[Path]) -> Shard:
        """The parameters in a rank's files."""
        return Shard(self.folder, files)

    @property
    def _pattern(self) -> str:
        return str(self.extra.pattern)

    def _rank_of(self, file: Path) -> int | None:
        """The rank that a file belongs to; None if it is not a rank's file."""
        expression = re.escape(self._pattern).replace(r"\{rank\}", r"(?P<rank>\d+)").replace(r"\{part\}", r"\d+")
        found = re.fullmatch(expression, file.name)
        return int(found["rank"]) if found else None


def check_shared(layout: ParallelLayout) -> None:
    """
    Raises:
        StartupError: ranks hold whole experts. Files do not say which, and their placement may be chosen differently.
    """
    if layout.expert > 1:
        raise StartupError(
            "--load-format sharded_state cannot be combined with --enable-expert-parallel: leave one of them out."
        )


class Shard(TensorSource):
    """One rank's parameters, with their names in the model."""

    def __init__(self, folder: Path, files: Sequence[Path]) -> None:
        self.folder = folder
        self.files = files

    def names(self) -> Mapping[str, Path]:
        """See TensorSource.names."""
        found: dict[str, Path] = {}
        for file in self.files:
            with opened(file) as tensors:
                found |= dict.fromkeys(tensors.keys(), file)
        return found

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """See TensorSource.tensors."""
        for file in self.files:
            with opened(file) as tensors:
                for name in tensors.keys():  # noqa: SIM118  (no mapping)
                    yield name, tensors.get_slice(name)
