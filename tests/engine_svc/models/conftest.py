"""Model folders, made once each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ModelFolder = Callable[..., Path]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """model_folder(family, **changes) → folder."""
    # Here, as tests that make no models run where Transformers is not installed: ARM's, in an emulator.
    from tests.support.tiny_models import make_model

    made: dict[str, Path] = {}

    def get(family: str, **changes: Any) -> Path:
        key = f"{family} {sorted(changes.items())}"
        if key not in made:
            made[key] = make_model(tmp_path_factory.mktemp(family), family, **changes)
        return made[key]

    return get
