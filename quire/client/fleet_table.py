"""Table of a fleet's workers, one per line."""

from __future__ import annotations

from collections.abc import Sequence

from quire.client.text_table import percent, printable, text_table
from quire.runners import ENCODE
from quire.v1 import router_pb2

_HEADER = (
    "ADDRESS", "STATE", "MODEL", "RUN", "WAIT", "KV", "CACHED", "HOST", "HIT", "PREFILL/S", "STEP MS", "REQUESTS",
)  # fmt: skip
_LEFT = 3  # columns of text, aligned left
_LONGEST_MODEL = 24


def fleet_table(workers: Sequence[router_pb2.Worker]) -> str:
    """A line for each worker, a line for each reason why one is not ready, and totals."""
    if not workers:
        return "The router has no workers. Name some with its --workers or --worker-dns."
    lines = text_table(_HEADER, [_row(worker) for worker in workers], _LEFT)
    if any(worker.model_info.HasField("data_parallel_rank") for worker in workers):
        lines = [f"{rank:>4}  {line}" for rank, line in zip(["RANK", *map(_rank, workers)], lines, strict=True)]
    lines += [f"{worker.address}: {printable(worker.reason)}" for worker in workers if worker.reason]
    return "\n".join([*lines, _sum(workers)])


def state_name(worker: router_pb2.Worker) -> str:
    """The state in lower case, such as `ready` or `draining`."""
    name: str = router_pb2.WorkerState.Name(worker.state)
    return name.removeprefix("WORKER_STATE_").lower()


def _rank(worker: router_pb2.Worker) -> str:
    """The data-parallel rank, or a dash."""
    info = worker.model_info
    return str(info.data_parallel_rank) if info.HasField("data_parallel_rank") else "-"


def _row(worker: router_pb2.Worker) -> list[str]:
    load = worker.load
    return [
        worker.address,
        state_name(worker),
        _model(worker),
        str(load.running_sequences),
        str(load.waiting_requests),
        percent(load.used_kv_blocks, load.total_kv_blocks),
        f"{worker.cached_blocks:,}",
        f"{worker.host_cached_blocks:,}",
        percent(worker.cached_prompt_tokens, worker.prompt_tokens),
        f"{worker.prefill_tokens_per_second:,.0f}" if worker.prefill_tokens_per_second else "-",
        f"{worker.seconds_per_step * 1e3:.1f}" if worker.seconds_per_step else "-",
        str(worker.inflight_requests),
    ]


def _model(worker: router_pb2.Worker) -> str:
    """The model's main name; the end of a long one, which may be a path. It tells which workers only encode."""
    name: str = next(iter(worker.model_info.served_model_names), "-")
    name = name if len(name) <= _LONGEST_MODEL else "…" + name[1 - _LONGEST_MODEL :]
    return f"{name} (encoder)" if worker.model_info.runner == ENCODE else name


def _sum(workers: Sequence[router_pb2.Worker]) -> str:
    ready = sum(worker.state == router_pb2.WORKER_STATE_READY for worker in workers)
    cached = sum(worker.cached_prompt_tokens for worker in workers)
    hit = percent(cached, sum(worker.prompt_tokens for worker in workers))
    requests = sum(worker.inflight_requests for worker in workers)
    return f"{ready} of {len(workers)} ready, {requests} requests of this router, hit rate {hit}"
