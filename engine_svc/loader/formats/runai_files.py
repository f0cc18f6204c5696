"""`--load-format runai_streamer` and `runai_streamer_sharded`: safetensors by Run:ai's streamer, in parallel reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec

from engine_svc.loader.formats.safetensors_files import Safetensors, failures_told
from engine_svc.loader.formats.sharded_state import PATTERN, Shard, ShardedState
from quire.extras import needed

if TYPE_CHECKING:
    from engine_svc.layers.parameter import TensorSlice


class Extra(msgspec.Struct):
    """The settings of --model-loader-extra-config. None means the streamer's default."""

    concurrency: int | None = None  # number of parallel reads
    memory_limit: int | None = None  # bytes of its buffer; -1 for the size of the files, 0 for that of one tensor

    def apply(self) -> None:
        """Passes the settings to the streamer, which reads environment variables."""
        for name, value in (("CONCURRENCY", self.concurrency), ("MEMORY_LIMIT", self.memory_limit)):
            if value is not None:
                os.environ[f"RUNAI_STREAMER_{name}"] = str(value)


class ShardedExtra(Extra):
    """The same settings, and the names of the files."""

    pattern: str = PATTERN


class RunaiStreamer(Safetensors):
    """See LoadFormat."""

    extra_config: ClassVar[type[msgspec.Struct]] = Extra

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """See TensorSource.tensors."""
        self.names()  # checks the files, as the streamer crashes on broken ones
        return streamed(self.files(), self.extra, self.options.load_format)


class RunaiStreamerSharded(ShardedState):
    """See LoadFormat."""

    extra_config: ClassVar[type[msgspec.Struct]] = ShardedExtra

    def shard(self, files: Sequence[Path]) -> Shard:
        """See ShardedState.shard."""
        return _StreamedShard(self.folder, files, self.extra, self.options.load_format)


class _StreamedShard(Shard):
    def __init__(self, folder: Path, files: Sequence[Path], extra: Extra, name: str) -> None:
        super().__init__(folder, files)
        self._extra = extra
        self._name = name

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """See TensorSource.tensors."""
        return streamed(self.files, self._extra, self._name)


def streamed(files: Sequence[Path], extra: Extra, name: str) -> Iterator[tuple[str, TensorSlice]]:
    """The tensors of safetensors files, in the order in which they arrive.

    Args:
        name: of the format, for messages.

    Raises:
        StartupError: the package is not installed, or the files cannot be read.
    """
    with needed(f"--load-format {name}", "runai-model-streamer", "runai"):
        from runai_model_streamer import SafetensorsStreamer
    from engine_svc.quantization.source import HeldTensor

    extra.apply()
    with failures_told(files[0].parent), SafetensorsStreamer() as streamer:
        streamer.stream_files([str(file) for file in files])
        for tensor_name, tensor in streamer.get_tensors():
            yield tensor_name, HeldTensor(tensor)
