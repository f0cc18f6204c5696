"""The number and form of adapters that a rank can hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_svc.adapters.targets import TargetModules


@dataclass(frozen=True)
class AdapterSettings:
    """Settings for adapters, the same on every rank."""

    max_adapters: int  # on the device at the same time
    max_rank: int
    dtype: torch.dtype  # of the adapters' matrices
    base_dtype: torch.dtype  # of the model
    fully_sharded: bool = False  # both halves of a product are divided among the ranks, not only one
    targets: TargetModules = TargetModules()  # modules that adapters may change
    is_part: bool = False  # other pipeline stages have other layers of the model, with the adapters' changes to them
