"""Model folders, each made only once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ModelFolder = Callable[..., Path]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """Returns a function that makes a tiny model and returns its folder: model_folder(family, **changes) → folder."""
    # Imported here, because tests that make no models also run without Transformers: those on emulated ARM.
    from tests.support.tiny_models import make_model

    made: dict[str, Path] = {}

    def get(family: str, **changes: Any) -> Path:
        key = f"{family} {sorted(changes.items())}"
        if key not in made:
            made[key] = make_model(tmp_path_factory.mktemp(family), family, **changes)
        return made[key]

    return get


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collects the number of rows that each feed-forward layer computes."""
    import torch

    from engine_svc.models.mlp import MLP

    rows: list[int] = []
    forward = MLP.forward

    def noting(self: MLP, hidden: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden))
        return forward(self, hidden)

    monkeypatch.setattr(MLP, "forward", noting)
    return rows
