"""Options of an engine, by their flat names."""

from __future__ import annotations

from typing import Any

from quire.options.base import build
from quire.options.engine import EngineOptions


def engine_options(**given: Any) -> EngineOptions:
    """Builds engine options, with each one in the group that it belongs to."""
    return build(EngineOptions, given)
