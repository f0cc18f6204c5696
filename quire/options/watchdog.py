"""Options of the step watchdog."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class WatchdogOptions:
    """How long a step may take."""

    step_timeout_seconds: float = option(
        300.0, "A step that takes longer means a wedged device: the worker reports NOT_SERVING.", minimum=1.0,
        variables=("VLLM_ENGINE_ITERATION_TIMEOUT_S",),
    )  # fmt: skip
    step_grace_seconds: float = option(
        30.0, "When the step has not ended after this time more, the worker ends itself with exit code 70, for its "
        "supervisor to start it anew.", minimum=0.0,
    )  # fmt: skip
