"""Triton's interpreter without what it does again and again to no effect, and with rows whose place changes no product.

For each kernel, and each call of a function within it, it looks through the whole language for what to replace: half of
its time. What is there does not change; and what has been replaced stays so until the kernel ends.

Its products are numpy's, whose library adds up the rows of a matrix in different orders where it has no kernels for
AVX-512. A GPU, and einsum, go through each row alike.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("triton"):  # ARM's tests run where there is none
            quicken(patch)
        yield


def quicken(patch: pytest.MonkeyPatch) -> None:
    from triton.runtime import interpreter

    replace, execute = interpreter._patch_lang, interpreter.GridExecutor.__call__
    replaced: dict[int, Any] = {}  # of the kernel that runs, by the namespaces of its functions

    @cache
    def builtins(place: Any) -> list[tuple[str, Any]]:
        return [(name, each) for name, each in inspect.getmembers(place) if interpreter.tl.core.is_builtin(each)]

    def replace_builtins(place: Any, *given: Any) -> None:
        for name, each in builtins(place):
            interpreter._patch_attr(place, name, each, *given)

    def replace_once(function: Any) -> Any:
        namespace = id(function.__globals__)
        if namespace not in replaced:
            replaced[namespace] = replace(function)
        return replaced[namespace]

    def execute_anew(*given: Any, **named: Any) -> None:
        replaced.clear()
        execute(*given, **named)

    def product(_: Any, left: Any, right: Any, total: Any, *how: Any) -> Any:
        assert not left.dtype.is_fp8() and not right.dtype.is_fp8()
        found = np.einsum("mk,kn->mn", left.data, right.data, dtype=total.data.dtype)
        return interpreter.TensorHandle(found + total.data, total.dtype.scalar)

    patch.setattr(interpreter.InterpreterBuilder, "create_dot", product)
    patch.setattr(interpreter, "_patch_builtin", replace_builtins)
    patch.setattr(interpreter, "_patch_lang", replace_once)
    patch.setattr(interpreter.GridExecutor, "__call__", execute_anew)
