"""The tensors of a checkpoint: one safetensors file, or several with an index."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open
from tqdm import tqdm

from engine_svc.layers.parameter import TensorSlice
from quire.errors import StartupError
from quire.supervised import Stage, report

_REPORTS_PER_FILE = 50
_INDEX = "model.safetensors.index.json"


def checkpoint_files(folder: Path) -> list[Path]:
    """The files that hold the weights, in order.

    Raises:
        StartupError: there are none, one is missing, or the index points outside of the folder.
    """
    index = folder / _INDEX
    if index.exists():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if strange := [name for name in names if Path(name).name != name]:
            raise StartupError(f"{index} names {strange[0]!r}, which is not a file of the folder.")
        files = [folder / name for name in names]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if missing := [file.name for file in files if not file.exists()]:
        raise StartupError(f"{folder} is not complete: {', '.join(missing[:3])} is missing.")
    if not files:
        pickled = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
        hint = " Its .bin files are pickles, which can run code: convert them to safetensors." if pickled else ""
        raise StartupError(f"{folder} has no *.safetensors weights.{hint}")
    return files


def tensors(folder: Path, progress: bool) -> Iterator[tuple[str, TensorSlice]]:
    """Name and slice of every tensor; a slice reads from the memory-mapped file only what is indexed.

    Args:
        progress: shows a bar on a terminal, one step per file, and tells a supervisor.
    """
    files = checkpoint_files(folder)
    report(Stage.LOADING)
    bar = tqdm(files, desc="Loading weights", unit="file", disable=not (progress and sys.stderr.isatty()))
    for number, file in enumerate(bar):
        try:
            with safe_open(file, framework="pt") as opened:
                names = list(opened.keys())
                for index, name in enumerate(names):
                    if progress and index % (len(names) // _REPORTS_PER_FILE + 1) == 0:
                        report(Stage.LOADING, (number + index / len(names)) / len(files))
                    yield name, opened.get_slice(name)
        except OSError as error:
            raise StartupError(f"{file} cannot be read: {error}") from error
        except Exception as error:
            if type(error).__name__ != "SafetensorError":
                raise
            raise StartupError(f"{file} is not a valid safetensors file: {error}") from error
