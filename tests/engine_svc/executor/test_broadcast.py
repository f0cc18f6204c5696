"""Broadcast to all ranks: short and long messages, in order. The ranks' ends are in this process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from engine_svc.executor.broadcast import Broadcast, Inbox, RankUnreachable
from engine_svc.executor.channel import Channel, encode
from engine_svc.executor.messages import Allocate, Masks, Step
from engine_svc.executor.slots import SLOT_BYTES, SlotReader, SlotWriter
from engine_svc.plan import CacheSize, NewSequence, StepPlan, TokenMasks
from tests.support.plans import sampling_plan

SECONDS = 60.0
SHORT = Allocate(CacheSize(5, 6, 7))


@dataclass
class Ends:
    broadcast: Broadcast
    inboxes: list[Inbox]
    sockets: list[socket.socket]  # the ranks' ends


@pytest.fixture(params=["memory", "sockets"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    pairs = [socket.socketpair() for _ in range(2)]
    slots = SlotWriter(4) if request.param == "memory" else None
    broadcast = Broadcast([Channel(ours) for ours, _ in pairs], slots)
    inboxes = [Inbox(Channel(theirs), SlotReader(slots.place) if slots else None) for _, theirs in pairs]
    yield Ends(broadcast, inboxes, [theirs for _, theirs in pairs])
    broadcast.close()
    for inbox in inboxes:
        with pytest.raises(EOFError):
            inbox.receive()
    for _, theirs in pairs:
        theirs.close()


def long_step(first: int, tokens: int) -> Step:
    prompt = [first, *[70000] * (tokens - 1)]
    return Step(StepPlan(1, [NewSequence(0, prompt, tokens, 0, [], sampling_plan())], []))


def test_every_rank_reads_all_commands_in_their_order(ends: Ends) -> None:
    for round_ in range(3):
        told = [SHORT, long_step(round_, 4000), Masks(TokenMasks([1], bytes(20000))), long_step(round_, 10)]
        for command in told:
            ends.broadcast.to_all(command, SECONDS)
        for inbox in ends.inboxes:
            assert [inbox.receive() for _ in told] == told


def test_each_rank_may_be_told_something_else(ends: Ends) -> None:
    told = [Allocate(CacheSize(1)), Allocate(CacheSize(2))]
    ends.broadcast.to_all(SHORT, SECONDS)
    ends.broadcast.to_each(told, SECONDS)
    assert [[inbox.receive() for _ in range(2)] for inbox in ends.inboxes] == [[SHORT, command] for command in told]


def test_who_does_not_read_or_is_gone_is_named(ends: Ends) -> None:
    too_long = Masks(TokenMasks([1], bytes(SLOT_BYTES + 1)))
    with pytest.raises(RankUnreachable) as late:
        ends.broadcast.to_all(too_long, 0.1)
    assert (late.value.rank, type(late.value.__cause__)) == (0, TimeoutError)
    ends.sockets[0].shutdown(socket.SHUT_RDWR)
    with pytest.raises(RankUnreachable) as gone:
        ends.broadcast.to_all(SHORT, 0.1)
    assert (gone.value.rank, type(gone.value.__cause__)) == (0, BrokenPipeError)
    ends.sockets[1].shutdown(socket.SHUT_RDWR)


def test_a_message_that_was_written_over_is_not_taken_for_another() -> None:
    writer = SlotWriter(2)
    reader = SlotReader(writer.place)
    first = encode(SHORT)
    numbers = [writer.write(first) for _ in range(3)]
    assert reader.read(numbers[2], len(first), bytes) == first
    with pytest.raises(RuntimeError, match="message 1 has been written over by 3"):
        reader.read(numbers[0], len(first), bytes)
    writer.close()
