"""Folders of tiny vision-language models, each made only once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

VisionFolder = Callable[[str], Path]


@pytest.fixture(scope="session")
def vision_folder(tmp_path_factory: pytest.TempPathFactory) -> VisionFolder:
    """Returns a function that makes a tiny model of a family, and returns its folder."""
    # Imported here, because Transformers takes a second, and not all of these tests need it.
    from tests.support.vision_models import make_vision_model

    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = make_vision_model(tmp_path_factory.mktemp(family), family)
        return made[family]

    return get
