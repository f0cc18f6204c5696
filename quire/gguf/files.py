"""A model in GGUF: one file, or several numbered ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.errors import StartupError
from quire.gguf.header import Header, StoredTensor, read_header

SUFFIX = ".gguf"
_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
# GGUF files beside a model that are no text models: image and audio projectors, and importance matrices.
_OTHERS = re.compile(r"(?i)mmproj|imatrix")


@dataclass(frozen=True)
class Gguf:
    """A complete model."""

    files: Sequence[Path]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    def text(self, name: str) -> str:
        """A string in the metadata; empty if there is none."""
        found = self.metadata.get(name)
        return found if isinstance(found, str) else ""

    def texts(self, name: str) -> list[str]:
        """A list of strings in the metadata; empty if there is none."""
        found = self.metadata.get(name)
        return found if isinstance(found, list) and all(isinstance(each, str) for each in found) else []

    def number(self, name: str) -> int | None:
        """An integer in the metadata, such as a token id; None if there is none."""
        found = self.metadata.get(name)
        return found if isinstance(found, int) else None


def is_gguf(path: Path) -> bool:
    """Whether the path names a GGUF file, existing or not."""
    return path.suffix == SUFFIX and not path.is_dir()


def files_of(file: Path) -> list[Path]:
    """All files of the model that a file belongs to.

    Raises:
        StartupError: one is missing.
    """
    numbered = _NUMBERED.fullmatch(file.name)
    if numbered is None:
        files = [file]
    else:
        name, _, count = numbered.groups()
        if not 1 <= int(count) <= 9999:
            raise StartupError(f"{file}: a model cannot have {count} files.")
        files = [file.with_name(f"{name}-{index:05}-of-{count}{SUFFIX}") for index in range(1, int(count) + 1)]
    if missing := [each.name for each in files if not each.is_file()]:
        raise StartupError(
            f"{file.parent} is incomplete: {', '.join(missing[:3])} is missing (the model has {len(files)} files)."
        )
    return files


def read_gguf(file: Path) -> Gguf:
    """Reads the headers of all files of a model; the metadata are those of the first.

    Raises:
        StartupError: a file is missing or broken, or two files have the same tensor.
    """
    files = files_of(file)
    headers = [read_header(each) for each in files]
    tensors: dict[str, StoredTensor] = {}
    for header in headers:
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise StartupError(f"{tensor.file}: {name} is also in {tensors[name].file.name}.")
            tensors[name] = tensor
    _check_split(files, headers, tensors)
    return Gguf(files, headers[0].metadata, tensors)


def _check_split(files: Sequence[Path], headers: Sequence[Header], tensors: Mapping[str, StoredTensor]) -> None:
    """Checks that the files are the parts of one model, in order.

    Raises:
        StartupError: they are not.
    """
    for index, (file, header) in enumerate(zip(files, headers, strict=True)):
        told = header.metadata.get("split.no", 0), header.metadata.get("split.count", 0)
        if told not in ((index, len(files)), (0, 0)):
            raise StartupError(
                f"{file} says that it is file {told[0]} of {told[1]}, counted from 0; expected {index} of "
                f"{len(files)}. Restore the original names of the files."
            )
    expected = headers[0].metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise StartupError(f"{files[0]}: the model has {expected} tensors, but {len(tensors)} are in its files.")


def model_in(folder: Path) -> Path | None:
    """The only GGUF model in a folder: its file, or the first of several parts. None means that there is none.

    Raises:
        StartupError: there are several models.
    """
    found = sorted(file for file in folder.glob(f"*{SUFFIX}") if not _OTHERS.search(file.name))
    models = [file for file in found if not (part := _NUMBERED.fullmatch(file.name)) or int(part[2]) == 1]
    if len(models) > 1:
        names = ", ".join(file.name for file in models[:5])
        raise StartupError(f"{folder} has {len(models)} GGUF models: {names}. Specify one of them.")
    return models[0] if models else None
