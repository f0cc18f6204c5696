"""`--load-format safetensors`: one file, or several with an index, memory-mapped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from safetensors import SafetensorError, safe_open

from engine_svc.loader.formats.base import CheckpointFormat
from engine_svc.loader.formats.shards import shard_files, tensor_files
from quire.errors import StartupError

if TYPE_CHECKING:
    from engine_svc.layers.parameter import TensorSlice

_PICKLES = ("*.bin", "*.pt", "*.pth")
_HINT = (
    " Its .bin files are pickles, which can run code: convert them to safetensors, or use --load-format pt, which "
    "reads only the tensors in them and runs nothing."
)


class Safetensors(CheckpointFormat):
    """Memory-mapped files; a slice reads only the indexed part. The `eager` strategy reads whole files."""

    patterns: ClassVar[Sequence[str]] = ("*.safetensors",)
    index: ClassVar[str] = "model.safetensors.index.json"

    def files(self) -> Sequence[Path]:
        """See LoadFormat.files."""
        files = shard_files(self.folder, self.index) or _of_the_model(self.found("*.safetensors"))
        if not files:
            pickled = any(file for pattern in _PICKLES for file in self.folder.glob(pattern))
            raise StartupError(f"{self.folder} has no *.safetensors weights.{_HINT if pickled else ''}")
        return files

    def names(self) -> Mapping[str, Path]:
        """See TensorSource.names."""
        found = {name: file for file in self.files() for name in _names_in(file)}
        for name, file in tensor_files(self.folder, self.index).items():
            if name not in found:
                raise StartupError(f"{file} lacks the tensor {name}, which {self.index} says is in it.")
        return found

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """See TensorSource.tensors."""
        read = _whole if self.options.safetensors_load_strategy == "eager" else _mapped
        for file in self.files():
            yield from read(file)


def _of_the_model(files: list[Path]) -> list[Path]:
    """Leaves out consolidated files, as Mistral's repositories have all weights a second time, in their own layout; and
    those of an adapter that Granite Speech has in the same folder."""
    return [file for file in files if not file.name.startswith(("consolidated", "adapter_model"))] or files


def _names_in(file: Path) -> list[str]:
    with opened(file) as tensors:
        return list(tensors.keys())


def _mapped(file: Path) -> Iterator[tuple[str, TensorSlice]]:
    with opened(file) as tensors:
        for name in tensors.keys():  # noqa: SIM118  (no mapping)
            yield name, tensors.get_slice(name)


def _whole(file: Path) -> Iterator[tuple[str, TensorSlice]]:
    from safetensors.torch import load

    from engine_svc.quantization.source import HeldTensor

    with failures_told(file):
        tensors = load(file.read_bytes())
    for name, tensor in tensors.items():
        yield name, HeldTensor(tensor)


@contextlib.contextmanager
def opened(file: Path) -> Iterator[Any]:
    """Opens a file with safetensors' reader.

    Raises:
        StartupError: it cannot be read.
    """
    with failures_told(file), safe_open(file, framework="pt") as reader:
        yield reader


@contextlib.contextmanager
def failures_told(file: Path) -> Iterator[None]:
    """Turns errors of reading a safetensors file into messages.

    Raises:
        StartupError: the code in the `with` block fails to read the file.
    """
    try:
        yield
    except OSError as error:
        raise StartupError(f"{file} cannot be read: {error}") from error
    except SafetensorError as error:
        raise StartupError(f"{file} is not a valid safetensors file: {error}") from error
