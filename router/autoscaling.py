"""How many workers the present load needs: `quire_router_wanted_workers`, the signal for autoscalers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from quire.runners import ENCODE, GENERATE, POOLING
from router.requests.waiting_room import WaitingRoom
from router.workers.base import Worker
from router.workers.eligible import served_models
from router.workers.state import State

if TYPE_CHECKING:
    from quire.v1 import common_pb2

PREFILL = "prefill"
# Prompts that wait are a full load for a worker that takes this long to compute them.
BACKLOG_SECONDS = 10.0
HALF_LIFE_SECONDS = 30.0
SAMPLE_SECONDS = 2.0
# Their requests are known to run elsewhere by now, or not to have begun.
_AWAY = (State.STARTING, State.UNREACHABLE)


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What one worker does, and what it could do. Limits that are unknown are infinite."""

    sequences: int = 0  # running or waiting there
    max_sequences: float = math.inf  # that run at once
    kv_usage: float = 0.0  # share of the KV cache that live sequences hold
    kv_tokens: float = math.inf  # tokens that fit into its KV cache
    prefill_tokens: int = 0  # of prompts that wait there to be computed
    tokens_per_second: float = 0.0  # computed lately
    seconds_per_token: float = 0.0  # in a step with as many tokens as it takes


@dataclass(frozen=True, slots=True)
class Queued:
    """What the requests in a router's queue will bring to the workers that they wait for."""

    sequences: int = 0
    kv_tokens: int = 0
    prefill_tokens: int = 0


class Group(NamedTuple):
    """Workers that are scaled together."""

    model: str
    role: str  # generate, prefill, pooling or encode


class Wanted(NamedTuple):
    """Numbers of workers, not rounded."""

    workers: float  # for the requests that are on workers, whichever router sent them
    queue: float  # in addition, for those in this router's queue


def wanted_workers(workers: Sequence[WorkerFigures], queued: Queued, target: float) -> Wanted:
    """How many workers like these would carry the load if each was used to the share `target`.

    A worker's load is a share of what it can do, of three kinds:

        sequences: sequences / max_sequences
        KV cache:  kv_usage + prefill_tokens / kv_tokens
        compute:   (tokens_per_second + prefill_tokens / BACKLOG_SECONDS) * seconds_per_token

    `workers` is the largest of the three sums over all workers, divided by the target. `queue` is the same for what
    waits, measured by the workers' average. With several routers, the workers' part is the same for all, and the queues
    add up.

    Args:
        workers: at least one.
        target: above 0, at most 1.
    """
    at_workers = max(
        sum(each.sequences / each.max_sequences for each in workers),
        sum(each.kv_usage + each.prefill_tokens / each.kv_tokens for each in workers),
        sum(
            (each.tokens_per_second + each.prefill_tokens / BACKLOG_SECONDS) * each.seconds_per_token
            for each in workers
        ),
    )
    in_queue = max(
        queued.sequences * sum(1 / each.max_sequences for each in workers),
        queued.kv_tokens * sum(1 / each.kv_tokens for each in workers),
        queued.prefill_tokens / BACKLOG_SECONDS * sum(each.seconds_per_token for each in workers),
    )
    return Wanted(at_workers / target, in_queue / len(workers) / target)


class Autoscaling:
    """Keeps the wanted numbers of workers, as a moving average with a half-life of HALF_LIFE_SECONDS.

    Both parts are averaged alike, so a request that goes from the queue to a worker counts once in their sum. Workers
    that drain count with what they still run: otherwise, one that is removed would make the next one seem superfluous.
    While none of a group's workers can be reached, its numbers stay as they are.
    """

    def __init__(
        self,
        workers: Callable[[], Collection[Worker]],
        waiting: Mapping[str, WaitingRoom[Any]],
        target: float,
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            workers: returns all workers known now.
            waiting: runner → the requests that wait for it.
            target: see wanted_workers.
            clock: returns the time in seconds.
        """
        self._workers = workers
        self._waiting = waiting
        self._target = target
        self._clock = clock
        self._sampled = -math.inf
        self._computed: dict[str, int] = {}  # worker → tokens that it had computed by the last sample
        # Replaced as a whole, as metrics are collected from another thread.
        self.wanted: Mapping[Group, Wanted] = {}

    def sample(self) -> None:
        """Takes in the present load; does nothing if it has done so within SAMPLE_SECONDS."""
        passed = self._clock() - self._sampled
        if passed < SAMPLE_SECONDS:
            return
        self._sampled = self._clock()
        found: dict[Group, list[WorkerFigures]] = defaultdict(list)
        computed = {}
        for worker in self._workers():
            if not worker.names:
                continue  # it has not reported its model
            figures = found[_group_of(worker)]
            if (last := worker.load.last) is None or worker.condition.state in _AWAY:
                continue
            count = computed[worker.address] = last.counters.computed_tokens
            tokens = count - self._computed.get(worker.address, count)
            figures.append(_figures(worker, max(0, tokens) / passed))
        self._computed = computed
        queued = self._queued(found)
        kept = 0.5 ** (passed / HALF_LIFE_SECONDS)
        wanted = {}
        for group, workers in found.items():
            before = self.wanted.get(group)
            if workers:
                now = wanted_workers(workers, queued[group], self._target)
                wanted[group] = now if before is None else _average(before, now, kept)
            elif before is not None:
                wanted[group] = before
        self.wanted = wanted

    def _queued(self, groups: Collection[Group]) -> Mapping[Group, Queued]:
        """What waits for each group. Where a model has workers that only compute prompts, those get the prompts."""
        names = served_models(self._workers())
        requests, tokens = Counter[Group](), Counter[Group]()
        for runner, room in self._waiting.items():
            for name, count in room.by_model().items():
                requests[Group(names.get(name, name), runner)] += count
            for name, count in room.tokens_by_model().items():
                tokens[Group(names.get(name, name), runner)] += count
        queued = {}
        for group in groups:
            if group.role == PREFILL:
                length = tokens[group._replace(role=GENERATE)]
                queued[group] = Queued(0, length, length)
            else:
                hands_over = group.role == GENERATE and group._replace(role=PREFILL) in groups
                queued[group] = Queued(requests[group], tokens[group], 0 if hands_over else tokens[group])
        return queued


def _group_of(worker: Worker) -> Group:
    role = PREFILL if worker.is_producer and worker.runner == GENERATE else worker.runner
    return Group(worker.names[0], role)


def _figures(worker: Worker, tokens_per_second: float) -> WorkerFigures:
    load, info, speed = worker.load, worker.model_info, worker.load.speed
    if info is None:
        return WorkerFigures()
    if worker.runner == ENCODE:  # one image at a time, and its tokens are those in its place in the prompt
        return WorkerFigures(
            prefill_tokens=load.prefill_tokens, tokens_per_second=tokens_per_second,
            seconds_per_token=_mean_seconds_per_token(load.last),
        )  # fmt: skip
    return WorkerFigures(
        sequences=load.sequences,
        # The texts of a pooling request take no places that others wait for: only their tokens count.
        max_sequences=math.inf if worker.runner == POOLING else load.max_sequences,
        kv_usage=load.kv_usage,
        kv_tokens=info.num_kv_blocks * info.block_size or math.inf,
        prefill_tokens=load.prefill_tokens,
        tokens_per_second=tokens_per_second,
        seconds_per_token=speed.seconds_per_token + speed.seconds_per_step / (info.max_num_batched_tokens or math.inf),
    )


def _mean_seconds_per_token(load: common_pb2.EngineLoad | None) -> float:
    """Of all that a worker has computed so far; 0 if that is nothing."""
    if load is None or not load.counters.computed_tokens:
        return 0.0
    return load.counters.model_execute_milliseconds.sum / 1000 / load.counters.computed_tokens


def _average(before: Wanted, now: Wanted, kept: float) -> Wanted:
    return Wanted(*(kept * old + (1 - kept) * new for old, new in zip(before, now, strict=True)))
