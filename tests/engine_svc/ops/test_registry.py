"""Which implementation runs where."""

from __future__ import annotations

import pytest
import torch

from engine_svc.ops.native import NativeOps
from engine_svc.ops.plain import PlainOps
from engine_svc.ops.registry import create_ops
from quire.errors import StartupError
from tests.support.native import needs_native


def test_native_kernels_are_refused_where_they_cannot_run() -> None:
    with pytest.raises(StartupError, match="bfloat16"):
        create_ops("native", torch.float32, torch.device("cpu"))
    with pytest.raises(StartupError, match="on cuda"):
        create_ops("native", torch.bfloat16, torch.device("cuda"))


def test_other_types_run_on_torch() -> None:
    assert type(create_ops("auto", torch.float32, torch.device("cpu"))) is PlainOps
    assert type(create_ops("torch", torch.bfloat16, torch.device("cpu"))) is PlainOps


@needs_native
def test_bfloat16_runs_natively() -> None:
    assert isinstance(create_ops("auto", torch.bfloat16, torch.device("cpu")), NativeOps)
