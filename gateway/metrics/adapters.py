"""Metrics of the LoRA adapters in use."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.metrics.prometheus import WHOLE_FLEET
from gateway.services.fleet import Fleet


def adapter_metrics(prefix: str, fleet: Fleet) -> Iterator[Metric]:
    """Reports the adapters of running and waiting requests the way vLLM does: as labels; the value is the current time.

    Yields nothing if no worker serves adapters.
    """
    serving = [worker for worker in fleet.heard if worker.model_info.max_loras]
    if not serving:
        return
    family = GaugeMetricFamily(
        f"{prefix}lora_requests_info",
        f"Adapters of running and waiting requests, as labels. The value is the Unix time in seconds. {WHOLE_FLEET}",
        labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
    )
    told = [adapter for worker in serving for adapter in worker.load.adapters]
    running = sorted({adapter.name for adapter in told if adapter.running_sequences})
    waiting = sorted({adapter.name for adapter in told if adapter.waiting_sequences})
    most = max(worker.model_info.max_loras for worker in serving)
    family.add_metric([str(most), ",".join(running), ",".join(waiting)], time.time())
    yield family
