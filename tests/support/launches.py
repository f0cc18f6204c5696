"""Records what would be launched on a GPU: Triton kernels, run by the interpreter here, and torch operators."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.interpreter import InterpretedFunction

from engine_svc.runner.native_calls import is_view

_NEW = {"empty", "new_empty", "empty_like", "empty_strided"}  # these only allocate memory


class Launches(TorchDispatchMode):
    """Context that records launches by name. Operators that only return views of tensors do not count."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.names: list[str] = []
        run = InterpretedFunction.run

        def noted(kernel: Any, *arguments: Any, **named: Any) -> Any:
            self.names.append(kernel.__name__)
            with _disable_current_modes():
                return run(kernel, *arguments, **named)

        monkeypatch.setattr(InterpretedFunction, "run", noted)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Torch's hook for each of its operators."""
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if name not in _NEW and (func._schema.is_mutable or not is_view(result, (args, kwargs))):
            self.names.append(name)
        return result
