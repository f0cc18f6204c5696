"""Finds out which Triton kernels a GPU would compile for what the interpreter runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

_ALIGNED = 16  # Triton specializes kernels for integers and addresses that are divisible by this


class CompiledKernels:
    """Records each kernel with what it is compiled for.

    That is: types, constants, and the properties of argument values that Triton specializes on, unless the kernel asks
    it not to.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels: set[tuple[Any, ...]] = set()
        run = InterpretedFunction.run

        def noted(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
            given = dict(zip(kernel.arg_names, arguments, strict=False)) | named
            self.kernels.add((kernel.__name__, *((name, _key(kernel, name, value)) for name, value in given.items())))
            return run(kernel, *arguments, grid=grid, warmup=warmup, **named)

        monkeypatch.setattr(InterpretedFunction, "run", noted)


def _key(kernel: Any, name: str, value: Any) -> Any:
    is_constant = "constexpr" in str(kernel.fn.__annotations__.get(name, "")) or name not in kernel.arg_names
    by_value = name not in (kernel.kwargs.get("do_not_specialize") or ())
    by_alignment = by_value and name not in (kernel.kwargs.get("do_not_specialize_on_alignment") or ())
    if is_constant or value is None or isinstance(value, bool):
        return value
    if isinstance(value, torch.Tensor):
        return value.dtype, by_alignment and value.data_ptr() % _ALIGNED == 0
    if isinstance(value, int):
        is_wide = not -(2**31) <= value < 2**31
        return is_wide, by_value and value == 1, by_alignment and value % _ALIGNED == 0
    return type(value)
