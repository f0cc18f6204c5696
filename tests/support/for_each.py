"""Many small cases in one test."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., None]


def for_each(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize`, within one test, because pytest takes longer than a case of a millisecond.

    The first case that fails ends the test, and is named. All cases share the test's fixtures.
    """
    cases = [{names: value} if isinstance(names, str) else dict(zip(names, value, strict=True)) for value in values]

    def decorate(test: Test) -> Test:
        assert not inspect.iscoroutinefunction(test), "nobody would await its cases"

        @functools.wraps(test)
        def run(**given: Any) -> None:
            for case in cases:
                try:
                    test(**given, **case)
                except pytest.skip.Exception as error:
                    raise AssertionError(f"{case} would skip all cases behind it") from error
                except BaseException as error:
                    error.add_note(f"with {case}")
                    raise

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in cases[0]]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
