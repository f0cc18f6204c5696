"""Options of the step watchdog."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class WatchdogOptions:
    """Step watchdog."""

    step_timeout_seconds: float = option(
        300.0, "A step that takes longer than this indicates a hung device: the worker reports NOT_SERVING.",
        minimum=1.0,
        variables=("VLLM_ENGINE_ITERATION_TIMEOUT_S", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"),
    )  # fmt: skip
    step_grace_seconds: float = option(
        30.0, "If the step has still not ended after this additional time, the worker exits with code 70, so that its "
        "supervisor restarts it.", minimum=0.0,
    )  # fmt: skip
