"""Model folders of the models' tests."""

from __future__ import annotations

from tests.engine_svc.models.conftest import model_folder

__all__ = ["model_folder"]
