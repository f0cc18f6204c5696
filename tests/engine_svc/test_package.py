"""What importing the engine's package sets before any of its modules is imported."""

import os
import subprocess
import sys

import pytest

_PRINT = "import engine_svc, os, sys; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"


@pytest.mark.parametrize(("given", "policy"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_torch_is_told_not_to_spin_before_it_is_there(given: dict[str, str], policy: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | given
    answer = subprocess.run([sys.executable, "-c", _PRINT], env=environment, capture_output=True, text=True, timeout=60)
    assert answer.stdout.split() == [policy, "False"]
