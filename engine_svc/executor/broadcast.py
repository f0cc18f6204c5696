"""Sends commands to all ranks: over each rank's channel, with long messages passed through shared memory."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from engine_svc.executor.channel import Channel, decode, encode
from engine_svc.executor.messages import Command
from engine_svc.executor.slots import SLOT_BYTES, SlotReader, SlotWriter

# Up to this size, reading a message from a socket is as fast: see benchmarks/results/executor.md.
_LONG = 2**14


class InSlot(msgspec.Struct, tag=True):
    """Sent in place of a command that is in a shared memory slot."""

    number: int
    length: int


@functools.cache
def _or_in_slot(kind: Any) -> Any:
    return kind | InSlot


class RankUnreachable(Exception):
    """A rank is gone or does not read; `__cause__` says which."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.rank = rank


class Broadcast:
    """The control side's end. Every rank receives all commands in order."""

    def __init__(self, channels: Sequence[Channel], slots: SlotWriter | None = None) -> None:
        self._channels = channels
        self._slots = slots

    def to_all(self, command: Command, seconds: float) -> None:
        """Sends all ranks the same command.

        Args:
            seconds: time limit for a rank to read.

        Raises:
            RankUnreachable: a rank is gone or does not read, as far as sending notices it.
        """
        payload = encode(command)
        if self._slots is not None and _LONG < len(payload) <= SLOT_BYTES:
            payload = encode(InSlot(self._slots.write(payload), len(payload)))
        self._send(dict.fromkeys(range(len(self._channels)), payload), seconds)

    def to_some(self, ranks: Iterable[int], command: Command, seconds: float) -> None:
        """Sends some ranks the same command; raises like `to_all`."""
        self._send(dict.fromkeys(ranks, encode(command)), seconds)

    def to_each(self, commands: Sequence[Command], seconds: float) -> None:
        """Sends each rank its own command; raises like `to_all`."""
        self._send({rank: encode(command) for rank, command in enumerate(commands)}, seconds)

    def close(self) -> None:
        """Closes all channels, which ends the ranks."""
        for channel in self._channels:
            channel.close()
        if self._slots is not None:
            self._slots.close()

    def _send(self, payloads: Mapping[int, bytes], seconds: float) -> None:
        for rank, payload in payloads.items():
            try:
                self._channels[rank].send_encoded(payload, seconds)
            except OSError as error:
                raise RankUnreachable(rank) from error


class Inbox:
    """A rank's end, which receives commands."""

    def __init__(self, channel: Channel, slots: SlotReader | None = None) -> None:
        self._channel = channel
        self._slots = slots

    def receive(self) -> Command:
        """Waits for the next command and returns it.

        Raises:
            EOFError, OSError: the control side is gone.
        """
        command: Command = self.receive_as(Command)
        return command

    def receive_as(self, kind: Any) -> Any:
        """Like `receive`, for messages of another type."""
        received = self._channel.receive(_or_in_slot(kind))
        if not isinstance(received, InSlot):
            return received
        if self._slots is None:
            raise RuntimeError("a command lies in memory that this rank does not share")
        return self._slots.read(received.number, received.length, lambda found: decode(found, kind))
