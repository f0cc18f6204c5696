"""`--load-format npcache`: like `pt`, but the first load writes each tensor to a numpy file, which is read afterwards.

The copies are in the folder `quire-np` next to the weights, one file for each tensor, with `tensors.json`, which lists
them and the files that they were made from. If the model's folder is not writable, they are in the user's cache.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine_svc.file_lock import locked
from engine_svc.loader.formats.torch_files import TorchFiles
from quire.cache_folder import cache_folder
from quire.errors import StartupError

if TYPE_CHECKING:
    import torch

    from engine_svc.layers.parameter import TensorSlice

logger = logging.getLogger(__name__)

_FOLDER, _INDEX = "quire-np", "tensors.json"
_SECONDS = 1200.0  # how long a rank waits while another one writes the copies


class _Copy(msgspec.Struct):
    """The copy of one tensor."""

    file: str
    dtype: str  # of the tensor; see _save


class _Copies(msgspec.Struct):
    """The contents of a folder of copies."""

    made_of: list[tuple[str, int, int]]  # source files: name, bytes and modification time in nanoseconds
    tensors: dict[str, _Copy]


class NumpyCache(TorchFiles):
    """Reads the copies, and makes them if they are missing or were made from other files."""

    def files(self) -> Sequence[Path]:
        """See LoadFormat.files."""
        sources = super().files()
        found = self._find(sources)
        return sources if found is None else [found[0] / copy.file for copy in found[1].tensors.values()]

    def names(self) -> Mapping[str, Path]:
        """See TensorSource.names."""
        found = self._find(super().files())
        if found is None:
            return super().names()
        return {name: found[0] / copy.file for name, copy in found[1].tensors.items()}

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """See TensorSource.tensors."""
        sources = super().files()
        found = self._find(sources) or self._make(sources)
        yield from super().tensors() if found is None else _read(*found)

    def _places(self) -> tuple[Path, Path]:
        """The possible folders of copies: next to the weights, and in the user's cache."""
        digest = hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:16]
        return self.folder / _FOLDER, cache_folder() / f"np-{digest}"

    def _find(self, sources: Sequence[Path]) -> tuple[Path, _Copies] | None:
        for folder in self._places():
            try:
                copies = msgspec.json.decode((folder / _INDEX).read_bytes(), type=_Copies)
            except (OSError, msgspec.DecodeError):
                continue
            if copies.made_of == _state(sources):
                return folder, copies
        return None

    def _make(self, sources: Sequence[Path]) -> tuple[Path, _Copies] | None:
        """Writes all copies; None if no folder can be written to."""
        for folder in self._places():
            draft = folder.with_name(f"{folder.name}.{os.getpid()}")
            try:
                with locked(folder.with_name(f"{folder.name}.lock"), _SECONDS):
                    if found := self._find(sources):  # another rank has made them meanwhile
                        return found
                    copies = _write(draft, _state(sources), super().tensors())
                    shutil.rmtree(folder, ignore_errors=True)
                    draft.rename(folder)
            except OSError as error:
                shutil.rmtree(draft, ignore_errors=True)
                logger.warning("cannot store copies of the weights in %s: %s", folder, error)
            else:
                return folder, copies
        return None


def _state(sources: Sequence[Path]) -> list[tuple[str, int, int]]:
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sources]


def _write(folder: Path, made_of: list[tuple[str, int, int]], tensors: Iterator[tuple[str, TensorSlice]]) -> _Copies:
    folder.mkdir(parents=True)
    copies = _Copies(made_of, {})
    for number, (name, source) in enumerate(tensors):
        tensor = source[...]
        copy = _Copy(f"{number:05}.npy", str(tensor.dtype).removeprefix("torch."))
        _save(folder / copy.file, tensor)
        copies.tensors[name] = copy
    (folder / _INDEX).write_bytes(msgspec.json.encode(copies))
    return copies


def _save(file: Path, tensor: torch.Tensor) -> None:
    """Saves a tensor. Numpy has no bfloat16 and no 8-bit floats, so these are stored as integers of the same size."""
    import numpy as np
    import torch

    tensor = tensor.cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    elif tensor.is_floating_point() and tensor.itemsize == 1:
        tensor = tensor.view(torch.uint8)
    np.save(file, tensor.numpy(), allow_pickle=False)


def _read(folder: Path, copies: _Copies) -> Iterator[tuple[str, TensorSlice]]:
    """Yields the tensors from their copies, memory-mapped.

    Raises:
        StartupError: a copy cannot be read.
    """
    import numpy as np
    import torch

    from engine_svc.quantization.source import HeldTensor

    for name, copy in copies.tensors.items():
        try:
            array = np.load(folder / copy.file, mmap_mode="c", allow_pickle=False)
            tensor = torch.from_numpy(array).view(getattr(torch, copy.dtype))
        except (OSError, EOFError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise StartupError(
                f"{folder / copy.file}, the copy of {name}, cannot be read: {error}. Remove {folder} to recreate all "
                "copies."
            ) from error
        yield name, HeldTensor(tensor)
