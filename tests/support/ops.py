"""The operations by the names that tests have for them, with the type that they run in."""

from __future__ import annotations

import torch

from engine_svc.native.library import kernels
from engine_svc.ops.base import Ops
from engine_svc.ops.native import NativeOps
from engine_svc.ops.plain import PlainOps
from engine_svc.ops.triton import TritonOps


def make_ops(name: str) -> tuple[Ops, torch.dtype]:
    if name == "plain":
        return PlainOps(), torch.float32
    if name == "triton":
        return TritonOps(), torch.float32
    found = kernels()
    assert found is not None
    return NativeOps(found), torch.bfloat16
