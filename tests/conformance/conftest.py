"""Fixtures shared by all conformance tests."""

from __future__ import annotations

from tests.support.interpreter import quick_interpreter

__all__ = ["quick_interpreter"]
