"""Fixtures shared with the tests of models."""

from __future__ import annotations

from tests.engine_svc.models.conftest import model_folder

__all__ = ["model_folder"]
