"""A runner that simulates a slow network between the ranks on one machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from engine_svc.parallel.group import ParallelGroups
from engine_svc.runner.runner import Runner
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions

BYTES_PER_SECOND = 125e6  # 1 Gb/s Ethernet


class SlowLinks(Runner):
    """For `--worker-cls`: after each collective in a pass, sleeps as long as its result would take on the network."""

    def __init__(
        self, model: ModelOptions, options: EngineOptions, groups: ParallelGroups, device: torch.device
    ) -> None:
        communicate = groups.dual_batch.communicate

        def slowly(call: Callable[[], torch.Tensor]) -> torch.Tensor:
            def sent() -> torch.Tensor:
                found = call()
                time.sleep(found.nbytes / BYTES_PER_SECOND)
                return found

            return communicate(sent)

        setattr(groups.dual_batch, "communicate", slowly)  # noqa: B010 - a method's place
        super().__init__(model, options, groups, device)
