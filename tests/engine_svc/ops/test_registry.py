"""Which implementation of the operations runs on which machine."""

from __future__ import annotations

import pytest
import torch

from engine_svc.native.levels import LEVELS, available_levels
from engine_svc.native.library import choose_kernels
from engine_svc.ops.native import NativeOps
from engine_svc.ops.plain import PlainOps
from engine_svc.ops.registry import create_ops
from quire.errors import StartupError
from quire.options.kernels import CPU_LEVELS
from tests.support.native import AVAILABLE, fastest_kernels, needs_native

CPU = torch.device("cpu")


def test_each_level_is_an_option() -> None:
    assert tuple(LEVELS) == CPU_LEVELS


def test_kernels_are_refused_where_they_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_svc.native.library.available_levels", lambda: ("avx2",))
    with pytest.raises(StartupError, match="Levels that it supports: avx2"):
        choose_kernels("amx", CPU)
    with pytest.raises(StartupError, match="for CPUs"):
        choose_kernels("avx2", torch.device("cuda"))


def test_torchs_operators_on_request() -> None:
    assert choose_kernels("torch", CPU) is None
    assert type(create_ops(None, torch.bfloat16, CPU)) is PlainOps


@needs_native
def test_the_highest_level_by_default() -> None:
    found = choose_kernels("auto", CPU)
    assert found is not None
    assert found.level == available_levels()[-1] == AVAILABLE[-1]
    assert isinstance(create_ops(fastest_kernels(), torch.bfloat16, CPU), NativeOps)
