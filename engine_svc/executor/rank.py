"""A rank process: `python -m engine_svc.executor.rank FD` obeys what comes through the socket FD."""

from __future__ import annotations

import logging
import socket
import sys

from engine_svc.executor.channel import Channel
from engine_svc.executor.device import choose_device
from engine_svc.executor.messages import Allocate, Answer, Command, Done, Failed, Load, Loaded, Step, Stepped
from engine_svc.parallel.group import join_group
from engine_svc.runner.runner import Runner
from quire.errors import StartupError
from quire.log import setup_logging

logger = logging.getLogger(__name__)


class RankProcess:
    """Executes commands until the executor closes the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._runner: Runner | None = None

    def serve(self) -> None:
        """Returns when the executor is gone, however it went."""
        while True:
            try:
                command = self._channel.receive(Command)
            except EOFError:
                return
            self._channel.send(self._answer(command))

    def _answer(self, command: Command) -> Answer:
        try:
            return self._execute(command)
        except StartupError as error:
            return Failed(str(error), startup=True)
        except Exception as error:
            logger.error("rank failed", exc_info=error)
            return Failed(f"{type(error).__name__}: {error}", startup=False)

    def _execute(self, command: Command) -> Answer:
        if isinstance(command, Load):
            return self._load(command)
        if self._runner is None:
            raise RuntimeError("load the model first")
        if isinstance(command, Step):
            return Stepped(self._runner.step(command.plan))
        if isinstance(command, Allocate):
            self._runner.allocate(command.num_blocks, command.num_host_blocks)
        return Done()

    def _load(self, command: Load) -> Answer:
        setup_logging(f"engine rank {command.rank}", command.log)
        options = command.options
        device = choose_device(options.device, command.rank)
        group = join_group(command.rank, options.tensor_parallel_size, command.rendezvous, device)
        self._runner = Runner(command.model, options, group, device)
        return Loaded(self._runner.spec())


if __name__ == "__main__":
    RankProcess(Channel(socket.socket(fileno=int(sys.argv[1])))).serve()
