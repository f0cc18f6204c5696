"""The tensors of a checkpoint: one safetensors file, or several with an index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open

from engine_svc.layers.parameter import TensorSlice
from engine_svc.loader.folder import checkpoint_files
from engine_svc.loader.progress import LoadingProgress
from quire.errors import StartupError
from quire.supervised import Stage, report


def tensors(folder: Path, progress: bool) -> Iterator[tuple[str, TensorSlice]]:
    """Name and slice of every tensor; a slice reads from the memory-mapped file only what is indexed.

    Args:
        progress: tells how far it is; see LoadingProgress.
    """
    files = checkpoint_files(folder)
    report(Stage.LOADING)
    shown = LoadingProgress(told=progress)
    sizes = [file.stat().st_size for file in files]
    try:
        for number, file in enumerate(files):
            before = sum(sizes[:number])
            for share, name, source in _tensors_of(file):
                yield name, source
                shown.update((before + share * sizes[number]) / sum(sizes))
    finally:
        shown.close()


def _tensors_of(file: Path) -> Iterator[tuple[float, str, TensorSlice]]:
    """For each tensor, how much of the file is done with it, from 0 to 1; its name; and the slice.

    Raises:
        StartupError: it cannot be read.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            names = list(opened.keys())
            for index, name in enumerate(names):
                yield (index + 1) / len(names), name, opened.get_slice(name)
    except OSError as error:
        raise StartupError(f"{file} cannot be read: {error}") from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError":
            raise
        raise StartupError(f"{file} is not a valid safetensors file: {error}") from error
