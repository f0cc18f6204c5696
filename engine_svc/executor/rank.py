"""A rank process: carries out the commands that the worker's control side sends to all ranks."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import threading
import time
from collections.abc import Callable

from engine_svc.executor.broadcast import Inbox
from engine_svc.executor.channel import GONE, Channel
from engine_svc.executor.child import begin_child
from engine_svc.executor.device import choose_device
from engine_svc.executor.messages import (
    Allocate,
    Answer,
    Command,
    Done,
    Failed,
    Keep,
    Kept,
    Loaded,
    LoadModel,
    Masks,
    Pool,
    Pooled,
    Probe,
    Step,
    Stepped,
)
from engine_svc.executor.place import place_of
from engine_svc.executor.waves import LockstepCommands
from engine_svc.native.library import choose_kernels
from engine_svc.parallel.group import join_groups
from engine_svc.parallel.lockstep import Lockstep
from engine_svc.plan import TokenMasks
from engine_svc.pooling.rank import PoolingRank, PoolingSource
from engine_svc.pooling_plan import PoolingPlan
from engine_svc.runner.rank import RankModel
from engine_svc.runner.source import ModelSource
from quire.errors import StartupError
from quire.log import log_options, setup_logging

logger = logging.getLogger(__name__)

_MEET_SECONDS = 3600.0  # for all data ranks to load
_TELL_SECONDS = 0.2  # for the control side to read the reason
# Time for a rank that is not stuck to end by itself, and for one that still computes for other data ranks.
_ALONE_SECONDS = 2.0
_FOR_OTHERS_SECONDS = 12.0


class RankProcess:
    """Executes commands until the executor is gone.

    A separate thread waits for answers and sends them, so that a step can be launched while the previous one runs.
    """

    def __init__(self, channel: Channel, inbox: Inbox) -> None:
        self._channel = channel
        self._inbox = inbox
        self._rank: RankModel | PoolingRank | None = None
        self._commands: LockstepCommands | None = None  # with other data ranks in lockstep
        self._answers: queue.SimpleQueue[Callable[[], Answer]] = queue.SimpleQueue()

    def serve(self) -> None:
        """Serves until the executor is gone for any reason. The process then ends, whatever it is doing."""
        threading.Thread(target=self._end_when_alone, name="alone", daemon=True).start()
        threading.Thread(target=self._send_answers, name="answers", daemon=True).start()
        while True:
            try:
                command = self._commands.receive() if self._commands else self._inbox.receive()
            except (EOFError, OSError):
                if self._rank is not None:
                    self._rank.close()
                return
            self._answers.put(self._begin(command))

    def _send_answers(self) -> None:
        with contextlib.suppress(OSError):  # the executor is gone
            while True:
                wait = self._answers.get()
                try:
                    answer = wait()
                except Exception as error:
                    answer = _failure(error)
                self._channel.send(answer)

    def _begin(self, command: Command) -> Callable[[], Answer]:
        """Executes a command; returns a function that waits for its answer."""
        try:
            return self._execute(command)
        except Exception as error:
            failure = _failure(self._commands.explain(error) if self._commands else error)
            return lambda: failure

    def _execute(self, command: Command) -> Callable[[], Answer]:
        if isinstance(command, LoadModel):
            loaded = self._load(command)
            return lambda: loaded
        if self._rank is None:
            raise RuntimeError("load the model first")
        if isinstance(command, Pool):
            if not isinstance(self._rank, PoolingRank):
                raise RuntimeError("the model is not served for pooling")
            found = self._rank.run(PoolingPlan(command.step, command.sequences, command.adapters))
            outputs = [] if self._rank.number else [*found.outputs]
            return lambda: Pooled(
                outputs, found.forward_milliseconds, found.execute_milliseconds, found.encoded_media,
                {**found.read_adapters},
            )  # fmt: skip
        if isinstance(command, Step):
            if not isinstance(self._rank, RankModel):
                raise RuntimeError("the model is served for pooling")
            step = self._rank.begin(command.plan)
            pending = self._rank.finish(step, self._receive_masks() if command.plan.awaits_masks else None)
            return lambda: Stepped(pending.result())
        if isinstance(command, Keep):
            lines = self._rank.upkeep(command.command)
            return lambda: Kept(lines)
        if isinstance(command, Probe):
            return Done
        if not isinstance(command, Allocate) or not isinstance(self._rank, RankModel):
            raise RuntimeError(f"{type(command).__name__} was received unexpectedly")
        self._rank.allocate(command.size)
        return Done

    def _receive_masks(self) -> TokenMasks:
        command = self._commands.receive_at_once() if self._commands else self._inbox.receive()
        if not isinstance(command, Masks):
            raise RuntimeError(f"a step is waiting for its masks, but {type(command).__name__} was received")
        return command.masks

    def _load(self, command: LoadModel) -> Answer:
        setup_logging("engine", log_options() or command.log, f"rank {command.rank}")
        options = command.options
        device = choose_device(options.kernels.device, command.device)
        in_order = device.type == "cpu" or options.kernels.batch_invariant is True
        place = place_of(command)
        kernels = choose_kernels(options.kernels.cpu_kernels, device)
        custom = not options.parallel.executor.disable_custom_all_reduce
        groups = join_groups(place.layout, place.rank, place.rendezvous, device, in_order, kernels, custom)
        if command.pooled_tokens is not None:
            pooled = self._rank = PoolingRank(
                PoolingSource(command.model, options, command.pooled_tokens, groups, device)
            )
            pooled.runner.allocate()
            return Loaded(pooled.runner.spec())
        self._wait_for_turn(command)
        rank = self._rank = RankModel(ModelSource(command.model, options, groups, device), device, command.rank)
        self._wait_for_turn(command)
        if groups.lockstep is not None:
            self._follow(groups.lockstep, rank)
        rank.runner.profile()
        return Loaded(rank.runner.spec())

    def _follow(self, lockstep: Lockstep, rank: RankModel) -> None:
        """Waits for the other data ranks to load; from then on all compute in lockstep."""
        self._commands = LockstepCommands(self._inbox.receive, lockstep, lambda: rank.runner.passes.run_empty())
        lockstep.watch(self._commands.wake, self._end)
        lockstep.meet(_MEET_SECONDS)

    def _end(self, why: str) -> None:
        """Ends this process because another data rank has: no pass can succeed, and a pass under way may never end."""
        logger.critical("%s; this rank, which computes together with it, exits", why)
        self._answers.put(lambda: Failed(why, startup=False))
        time.sleep(_TELL_SECONDS)
        logging.shutdown()
        os._exit(1)

    def _end_when_alone(self) -> None:
        """Ends the process when the executor is gone, even if it waits in a collective for ranks that are gone."""
        poll = select.poll()
        poll.register(self._channel.fileno(), GONE)
        poll.poll()
        time.sleep(_FOR_OTHERS_SECONDS if self._commands else _ALONE_SECONDS)
        os._exit(1)

    def _wait_for_turn(self, command: LoadModel) -> None:
        if command.in_turns:
            self._channel.send(Done())
            self._inbox.receive()


def _failure(error: Exception) -> Failed:
    if isinstance(error, StartupError):
        return Failed(str(error), startup=True)
    logger.error("rank failed", exc_info=error)
    return Failed(f"{type(error).__name__}: {error}", startup=False)


def run(argument: str) -> None:
    """Main function of a rank process; see start_child."""
    RankProcess(*begin_child(argument)).serve()
