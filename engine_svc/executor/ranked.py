"""Base of executors whose ranks are processes: how the control side communicates with them, wherever they run."""

from __future__ import annotations

import logging
import select
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from engine_svc.executor.agreement import Agreement, joint_spec
from engine_svc.executor.base import Executor, ExecutorDead
from engine_svc.executor.broadcast import RankUnreachable
from engine_svc.executor.messages import (
    Allocate,
    Answer,
    Command,
    Failed,
    Keep,
    Kept,
    Loaded,
    LoadModel,
    Masks,
    Probe,
    Proceed,
    Step,
    Stepped,
)
from engine_svc.executor.ranks import RankGroup, RankWatch
from engine_svc.parallel.layout import layout_of
from engine_svc.plan import CacheSize, KvCacheSpec, StepPlan, StepResult, TokenMasks
from engine_svc.upkeep import Upkeep
from quire.errors import StartupError
from quire.log import log_options
from quire.options.engine import EngineOptions
from quire.options.log import LogOptions
from quire.options.model import ModelOptions

logger = logging.getLogger(__name__)

_LOAD_SECONDS = 3600.0
# Time for an idle rank to answer a probe; a busy machine may delay it.
_PROBE_SECONDS = 10.0
# Time from a first sign of trouble until the loss of a rank is noticed.
_DEATH_SECONDS = 0.5


class RankedExecutor(Executor):
    """Sends every rank the same plans and combines their results.

    A rank that is lost, or stuck in a step, ends the executor: the others would wait for it in a collective forever.
    """

    max_in_flight = 2
    pooled_tokens: list[int] | None = None  # see LoadModel

    def __init__(self) -> None:
        self._ranks: RankGroup | None = None
        self._watch: RankWatch | None = None
        self._wake: Callable[[], None] = lambda: None
        self._failure = ""  # why no further step can succeed
        self._step_seconds = self._probe_seconds = _LOAD_SECONDS
        self._agreement = Agreement()

    @abstractmethod
    def _start(self, model: ModelOptions, options: EngineOptions) -> RankGroup:
        """Starts the ranks.

        Raises:
            StartupError: they cannot be started here.
        """

    def load(self, model: ModelOptions, options: EngineOptions) -> KvCacheSpec:
        """See Executor.load."""
        self._step_seconds = options.watchdog.step_timeout_seconds
        layout = layout_of(options.parallel)
        self._agreement = Agreement(layout)
        self.max_in_flight = layout.pipeline + 1  # one in each stage, and one that waits for the first stage
        ranks = self._ranks = self._start(model, options)
        self._watch = RankWatch(ranks, lambda: self._wake())
        at_once = options.parallel.executor.max_parallel_loading_workers or len(ranks.devices)
        in_turns = at_once < len(ranks.devices)
        log, theirs = log_options() or LogOptions(), _without_secret(options)
        commands: list[Command] = [
            LoadModel(model, theirs, rank, device, ranks.rendezvous, log, in_turns, self.pooled_tokens)
            for rank, device in enumerate(ranks.devices)
        ]
        try:
            with self._noticing_death():
                ranks.broadcast.to_each(commands, self._step_seconds)
            if in_turns:
                self._take_turns(ranks, at_once)
            answers = self._receive(_LOAD_SECONDS)
        except ExecutorDead as error:
            raise StartupError(f"A rank of the model ended while loading: {error}. See the log above.") from error
        spec = joint_spec([answer.spec for answer in answers if isinstance(answer, Loaded)])
        # A rank that takes part in other data ranks' passes answers when the current pass has ended.
        self._probe_seconds = self._step_seconds if spec.lockstep_ranks > 1 else min(_PROBE_SECONDS, self._step_seconds)
        return spec

    def _take_turns(self, ranks: RankGroup, at_once: int) -> None:
        """Lets only `at_once` ranks read weights at a time."""
        self._receive(_LOAD_SECONDS)  # they have met
        for first in range(0, len(ranks.channels), at_once):
            turn = range(first, min(first + at_once, len(ranks.channels)))
            with self._noticing_death():
                ranks.broadcast.to_some(turn, Proceed(), self._step_seconds)
            self._receive(_LOAD_SECONDS, turn)
        self._send_all(Proceed())

    def allocate(self, size: CacheSize) -> None:
        """See Executor.allocate."""
        self._send_all(Allocate(size))
        self._receive(self._step_seconds)

    def submit(self, plan: StepPlan) -> None:
        """See Executor.submit."""
        self._agreement.begin(plan)
        self._send_all(Step(plan))

    def send_masks(self, masks: TokenMasks) -> None:
        """See Executor.send_masks."""
        self._send_all(Masks(masks))

    def collect(self) -> StepResult:
        """See Executor.collect."""
        answers = self._receive(self._step_seconds)
        results = [answer.result for answer in answers if isinstance(answer, Stepped)]
        if len(results) < len(answers):
            raise ExecutorDead(f"{len(answers) - len(results)} ranks gave another kind of answer to a step")
        return self._agreement.of(results)

    def upkeep(self, command: Upkeep) -> list[str]:
        """See Executor.upkeep. A failure on any rank is fatal, because the others may not have failed."""
        self._send_all(Keep(command))
        try:
            answers = self._receive(_LOAD_SECONDS)
        except StartupError as error:
            raise ExecutorDead(str(error)) from error
        return [line for answer in answers if isinstance(answer, Kept) for line in answer.lines]

    def wake_by(self, wake: Callable[[], None]) -> None:
        """See Executor.wake_by."""
        self._wake = wake

    def check_alive(self, asks: bool = False) -> None:
        """See Executor.check_alive. The kernel reports a rank that is gone; a frozen one does not answer the probe."""
        if self._watch is not None and self._watch.death:
            raise self._dead(self._watch.death)
        if self._failure:
            raise ExecutorDead(self._failure)
        if asks:
            self._send_all(Probe())
            self._receive(self._probe_seconds)

    def close(self) -> None:
        """See Executor.close."""
        ranks, self._ranks = self._ranks, None
        if ranks is None:
            return
        if self._watch is not None:
            self._watch.stop()
        if self._failure:
            ranks.kill()
        ranks.broadcast.close()
        ranks.wait()

    def _started(self) -> RankGroup:
        if self._ranks is None:
            raise RuntimeError("load the model first")
        return self._ranks

    def _send_all(self, command: Command) -> None:
        self.check_alive()
        with self._noticing_death():
            self._started().broadcast.to_all(command, self._step_seconds)

    def _receive(self, seconds: float, wanted: Iterable[int] | None = None) -> list[Answer]:
        """Receives the next answer of each of the `wanted` ranks; None means all ranks.

        Raises:
            StartupError: a rank reports one.
            ExecutorDead: a rank failed, is gone or does not answer.
        """
        ranks, answers = self._started(), dict[int, Answer]()
        wanted = range(len(ranks.channels)) if wanted is None else wanted
        deadline = time.monotonic() + seconds
        while missing := {ranks.channels[rank].fileno(): rank for rank in wanted if rank not in answers}:
            ready = _readable(missing, deadline - time.monotonic())
            for rank in ready:
                with self._noticing_death():
                    answers[rank] = _receive_of(rank, ranks, self._step_seconds)
                self._heed(rank, answers[rank])
            if not ready:
                raise self._lost(ranks, list(missing.values()), seconds)
        return [answers[rank] for rank in sorted(answers)]

    def _heed(self, rank: int, answer: Answer) -> None:
        if not isinstance(answer, Failed):
            return
        if answer.startup:
            self._dead(answer.message)
            raise StartupError(answer.message)
        # It may have failed because another rank died during a collective.
        raise self._dead(self._find_death() or f"{self._started().name(rank)} failed: {answer.message}")

    def _lost(self, ranks: RankGroup, missing: list[int], seconds: float) -> ExecutorDead:
        """The error for ranks that have not answered in time; logs the stacks of all ranks."""
        names = ", ".join(ranks.name(rank) for rank in missing)
        logger.critical("no answer in %g s from %s; the stacks of the ranks that are still running:", seconds, names)
        ranks.tell_where()
        return self._dead(f"no answer in {seconds:g} s from {names}")

    def _dead(self, why: str) -> ExecutorDead:
        self._failure = why
        if self._watch is not None:
            self._watch.stop()
        if self._ranks is not None:
            self._ranks.kill()
        return ExecutorDead(why)

    def _find_death(self) -> str:
        return self._watch.find_death(_DEATH_SECONDS) if self._watch else ""

    @contextmanager
    def _noticing_death(self) -> Iterator[None]:
        try:
            yield
        except RankUnreachable as error:
            name = self._started().name(error.rank)
            if isinstance(error.__cause__, TimeoutError):
                raise self._dead(f"{name} does not read, or stopped in the middle of an answer") from error
            raise self._dead(self._find_death() or f"{name} has gone: {error.__cause__!r}") from error


def _without_secret(options: EngineOptions) -> EngineOptions:
    """The options without what ranks have proved that they know, which others on their network might read."""
    executor = replace(options.parallel.executor, rank_secret=None)
    return replace(options, parallel=replace(options.parallel, executor=executor))


def _receive_of(rank: int, ranks: RankGroup, seconds: float) -> Answer:
    try:
        answer: Answer = ranks.channels[rank].receive(Answer, seconds)
    except (OSError, EOFError) as error:
        raise RankUnreachable(rank) from error
    return answer


def _readable(ranks: dict[int, int], seconds: float) -> list[int]:
    """Waits for any of the ranks, given by their channels' descriptors, to answer or to go; returns those."""
    poll = select.poll()
    for descriptor in ranks:
        poll.register(descriptor, select.POLLIN)
    return [ranks[descriptor] for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)]
