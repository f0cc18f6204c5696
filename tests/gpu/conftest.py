"""Fixtures of all GPU tests, for emulated GPUs."""

from __future__ import annotations

from tests.support.interpreter import quick_interpreter

__all__ = ["quick_interpreter"]
