"""What all tests of a GPU have, where it is emulated."""

from __future__ import annotations

from tests.support.interpreter import quick_interpreter

__all__ = ["quick_interpreter"]
