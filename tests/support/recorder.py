"""Stands in for CUDA graphs on a machine without a GPU."""

from __future__ import annotations

import pytest
import torch

from engine_svc.runner.recorded import Capture, Forward, Replay


def record_prompts(monkeypatch: pytest.MonkeyPatch, *sizes: int) -> None:
    """Sets the sizes of recorded steps with prompts: by default there are too many for an interpreter."""
    monkeypatch.setattr("engine_svc.runner.runner.prompt_sizes", lambda *_: [*sizes])


class Recorder(Capture):
    """Replays by running the recorded pass again over the buffers' present contents, like a graph."""

    def __init__(self) -> None:
        self.replays = 0
        self.recorded = 0

    def __call__(self, forward: Forward) -> tuple[Replay, torch.Tensor]:
        output = forward().clone()
        self.recorded += 1

        def replay() -> None:
            self.replays += 1
            output.copy_(forward())

        return replay, output
