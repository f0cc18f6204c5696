"""Fixtures shared by all engine tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.forked_ranks import forked_ranks
from tests.support.interpreter import quick_interpreter

__all__ = ["quick_interpreter"]


@pytest.fixture(scope="module", autouse=True)
def _forked_ranks() -> Iterator[None]:
    """Forks ranks within each module; other tests in the same session start ranks as a worker does."""
    with forked_ranks():
        yield
