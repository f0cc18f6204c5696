"""A rank process: it obeys what the worker's control side says to all ranks."""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
from collections.abc import Callable

from engine_svc.executor.broadcast import Inbox
from engine_svc.executor.channel import Channel
from engine_svc.executor.child import begin_child
from engine_svc.executor.device import choose_device
from engine_svc.executor.messages import (
    Answer,
    Command,
    Done,
    Failed,
    Keep,
    Kept,
    Loaded,
    LoadModel,
    Masks,
    Step,
    Stepped,
)
from engine_svc.parallel.group import join_groups
from engine_svc.parallel.layout import layout_of
from engine_svc.plan import TokenMasks
from engine_svc.runner.rank import RankModel
from engine_svc.runner.runner import Runner
from quire.errors import StartupError
from quire.log import setup_logging

logger = logging.getLogger(__name__)


class RankProcess:
    """Executes commands until the executor is gone or has no more of them.

    Answers are waited for and sent by a thread of their own, so that a step can be launched while the one before runs.
    """

    def __init__(self, channel: Channel, inbox: Inbox) -> None:
        self._channel = channel
        self._inbox = inbox
        self._rank: RankModel | None = None
        self._answers: queue.SimpleQueue[Callable[[], Answer]] = queue.SimpleQueue()

    def serve(self) -> None:
        """Returns when the executor is gone, however it went."""
        threading.Thread(target=self._send_answers, name="answers", daemon=True).start()
        while True:
            try:
                command = self._inbox.receive()
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
        """Obeys; returns what waits for the answer."""
        try:
            return self._execute(command)
        except Exception as error:
            failure = _failure(error)
            return lambda: failure

    def _execute(self, command: Command) -> Callable[[], Answer]:
        if isinstance(command, LoadModel):
            loaded = self._load(command)
            return lambda: loaded
        if self._rank is None:
            raise RuntimeError("load the model first")
        if isinstance(command, Step):
            step = self._rank.begin(command.plan)
            pending = self._rank.finish(step, self._receive_masks() if command.plan.awaits_masks else None)
            return lambda: Stepped(pending.result())
        if isinstance(command, Masks):
            raise RuntimeError("masks came, and no step awaits any")
        if isinstance(command, Keep):
            lines = self._rank.upkeep(command.command)
            return lambda: Kept(lines)
        self._rank.allocate(command.num_blocks, command.num_host_blocks)
        return Done

    def _receive_masks(self) -> TokenMasks:
        command = self._inbox.receive()
        if not isinstance(command, Masks):
            raise RuntimeError(f"a step awaits its masks, and {type(command).__name__} came")
        return command.masks

    def _load(self, command: LoadModel) -> Answer:
        setup_logging("engine", command.log, f"rank {command.rank}")
        options = command.options
        device = choose_device(options.kernels.device, command.device)
        in_order = device.type == "cpu" or options.kernels.batch_invariant is True
        groups = join_groups(layout_of(options.parallel), command.rank, command.rendezvous, device, in_order)
        self._rank = RankModel(lambda: Runner(command.model, options, groups, device), device, command.rank)
        self._rank.runner.profile()
        return Loaded(self._rank.runner.spec())


def _failure(error: Exception) -> Failed:
    if isinstance(error, StartupError):
        return Failed(str(error), startup=True)
    logger.error("rank failed", exc_info=error)
    return Failed(f"{type(error).__name__}: {error}", startup=False)


if __name__ == "__main__":
    RankProcess(*begin_child(sys.argv[1])).serve()
