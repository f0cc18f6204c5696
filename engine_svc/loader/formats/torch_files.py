"""`--load-format pt`: files written by `torch.save`, read without executing code from them.

Such a file is a pickle: a program that builds the objects it holds. Torch's restricted reader (`weights_only=True`)
understands only what tensors need, and rejects everything else. Still, it parses untrusted input, so it is used only
if the user asks for this format by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from engine_svc.loader.formats.base import CheckpointFormat
from engine_svc.loader.formats.shards import shard_files, tensor_files
from quire.errors import StartupError

if TYPE_CHECKING:
    import torch

    from engine_svc.layers.parameter import TensorSlice

_INDEX = "pytorch_model.bin.index.json"
_FLAG = "--pt-load-map-location"
# Files that training leaves next to the weights.
_OTHERS = ("optimizer", "scheduler", "scaler", "training_args", "rng_state", "trainer_state")


class TorchFiles(CheckpointFormat):
    """Files are memory-mapped if they were written by torch 1.6 or later."""

    patterns: ClassVar[Sequence[str]] = ("*.bin", "*.pt", "*.pth", "*.bin.index.json")

    def files(self) -> Sequence[Path]:
        """See LoadFormat.files."""
        if found := shard_files(self.folder, _INDEX):
            return found
        for pattern in ("*.bin", "*.pt", "*.pth"):
            if found := [file for file in self.found(pattern) if not file.name.startswith(_OTHERS)]:
                return found
        raise StartupError(f"{self.folder} has no *.bin, *.pt or *.pth weights.")

    def names(self) -> Mapping[str, Path]:
        """See TensorSource.names."""
        return tensor_files(self.folder, _INDEX) or {
            name: file for file in self.files() for name in read_tensors(file, "meta")
        }

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """See TensorSource.tensors."""
        from engine_svc.quantization.source import HeldTensor

        location = _map_location(self.options.pt_load_map_location)
        for file in self.files():
            for name, tensor in read_tensors(file, location).items():
                yield name, HeldTensor(tensor)


def read_tensors(file: Path, location: str | dict[str, str]) -> dict[str, torch.Tensor]:
    """All tensors of a file, by name.

    Args:
        location: `map_location` of torch.load.

    Raises:
        StartupError: the file cannot be read, or holds anything but tensors.
    """
    try:
        found = _read(file, location)
    except Exception as error:  # the file may be anything, and torch raises many kinds of errors
        if type(error).__name__ == "UnpicklingError":
            raise StartupError(
                f"{file} contains more than tensors, or was not written by torch.save. It is a pickle, and reading "
                "all of it would run code in it, which Quire never does. If you trust the file, convert it to "
                f"safetensors. ({str(error).splitlines()[0][:200]})"
            ) from error
        raise StartupError(f"{file} cannot be read: {str(error)[:500]}") from error
    return _checked(file, found, location)


def _read(file: Path, location: str | dict[str, str]) -> Any:
    import torch

    with file.open("rb") as opened:
        is_archive = opened.read(2) == b"PK"  # files before torch 1.6 are bare pickles, which cannot be mapped
    return torch.load(file, map_location=location, weights_only=True, mmap=is_archive)


def _checked(file: Path, found: Any, location: str | dict[str, str]) -> dict[str, torch.Tensor]:
    import torch

    if not isinstance(found, dict):
        raise StartupError(f"{file} contains {type(found).__name__}; expected a dictionary of tensors.")
    is_for_meta = "meta" in (location.values() if isinstance(location, dict) else (location,))
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise StartupError(
                f"{file}: {name!r} is {type(value).__name__}; expected a tensor. If the weights are only a part of "
                "what was saved, save just that part."
            )
        is_sparse = value.layout is not torch.strided
        if is_sparse or (value.is_meta and not is_for_meta):
            kind = "is sparse" if is_sparse else "has no values: it was on the meta device"
            raise StartupError(f"{file}: {name} {kind}. Save a tensor with all of its values.")
    return found


def _map_location(text: str) -> str | dict[str, str]:
    """The option's value in the form that torch takes.

    Raises:
        StartupError: it is neither a device nor a mapping of devices.
    """
    if not text.lstrip().startswith("{"):
        return text
    try:
        mapping = json.loads(text)
    except ValueError as error:
        raise StartupError(f"{_FLAG} {text} is not valid JSON: {error}.") from error
    if not all(isinstance(device, str) for device in mapping.values()):
        raise StartupError(f'{_FLAG} {text}: expected device names, such as {{"cuda:1": "cuda:0"}}.')
    if "" not in mapping:
        return dict(mapping)
    if len(mapping) > 1:
        raise StartupError(f'{_FLAG} {text}: "" stands for all devices and cannot be combined with others.')
    return str(mapping[""])
