"""Folders with models, each made once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

FolderOf = Callable[[str], Path]


def made_once(factory: pytest.TempPathFactory, make: Callable[[Path, str], object]) -> FolderOf:
    """Returns a function that returns the folder of a family, and makes it if it is asked for the first time.

    Args:
        make: writes a model of a family to a folder.
    """

    @functools.cache
    def get(family: str) -> Path:
        folder = factory.mktemp(family)
        make(folder, family)
        return folder

    return get
