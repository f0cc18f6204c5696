"""What a GPU is given to do: Triton's kernels, which the interpreter runs here, and torch's operators that compute."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.interpreter import InterpretedFunction

from engine_svc.runner.native_calls import is_view

_NEW = {"empty", "new_empty", "empty_like", "empty_strided"}  # memory, and nothing in it


class Launches(TorchDispatchMode):
    """Notes them by their names, while it is entered. What only looks at a tensor in another way is none of them."""

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
