"""Deltas of steps reach the event loop in order, urgent ones at once and the rest in few calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from engine_svc.core import handover as handover_module
from engine_svc.core.handover import Handover, joined
from engine_svc.kv_cache.events import Changes
from engine_svc.plan import PositionLogprobs
from engine_svc.requests.outputs import FinishReason, SequenceDelta
from tests.support.waiting import eventually

SECONDS = 60.0
FOREVER = 3600.0


class Loop:
    """The event loop's side of a handover."""

    def __init__(self, pause: float) -> None:
        self.told: list[int] = []  # how many deltas preceded each pause
        self._seconds = pause
        self.calls: list[list[int]] = []  # keys of the deltas in each call
        self.handover = Handover(asyncio.get_running_loop(), self._deliver, self._pause)

    @property
    def keys(self) -> list[int]:
        return [key for call in self.calls for key in call]

    async def put(self, *keys: int, urgent: Sequence[int] = (), flush: bool = False) -> None:
        """Hands over the deltas of a step from another thread."""
        deltas = [SequenceDelta(key, 0, [0]) for key in keys]
        await asyncio.to_thread(self.handover.put, deltas, None, urgent=urgent, flush=flush)

    def _deliver(self, deltas: list[SequenceDelta], changes: list[Changes]) -> None:
        self.calls.append([delta.key for delta in deltas])

    def _pause(self, deltas: int) -> float:
        self.told.append(deltas)
        return self._seconds


async def test_what_is_urgent_goes_without_what_is_not() -> None:
    loop = Loop(FOREVER)
    await loop.put(1)  # nothing has been delivered, so there is no pause yet
    await eventually(lambda: loop.keys == [1], "the first", SECONDS)
    await loop.put(2, 4)
    await loop.put(3)
    await asyncio.sleep(0.01)
    assert loop.keys == [1]
    await loop.put(2, 4, 5, urgent=[4, 5])
    await eventually(lambda: loop.calls == [[1], [4, 5]], "the urgent ones", SECONDS)
    await loop.put(6, flush=True)
    await eventually(lambda: loop.calls[2:] == [[3, 2, 6]], "all that waits, in order", SECONDS)
    assert loop.told == [1]


async def test_a_request_that_is_urgent_brings_what_waits_of_it() -> None:
    delivered: list[SequenceDelta] = []
    handover = Handover(asyncio.get_running_loop(), lambda deltas, _: delivered.extend(deltas), lambda _: FOREVER)
    steps = [SequenceDelta(1, 0, [10]), SequenceDelta(1, 0, [11]), SequenceDelta(2, 0, [20]), SequenceDelta(1, 0, [12])]
    for number, delta in enumerate(steps):
        await asyncio.to_thread(handover.put, [delta], None, urgent=[1] if number == 3 else [])
        await asyncio.sleep(0)
    await eventually(lambda: len(delivered) == 2, "the first, and the rest of its request", SECONDS)
    assert delivered == [SequenceDelta(1, 0, [10]), SequenceDelta(1, 0, [11, 12])]


def test_tokens_of_different_weights_are_not_joined() -> None:
    deltas = [SequenceDelta(1, 0, [token], weight_version=version) for token, version in enumerate(["", "", "b", "b"])]
    assert joined([[delta] for delta in deltas]) == [
        SequenceDelta(1, 0, [0, 1]), SequenceDelta(1, 0, [2, 3], weight_version="b"),
    ]  # fmt: skip


async def test_a_pause_is_told_how_much_it_comes_after() -> None:
    loop = Loop(0.01)
    await loop.put(1)
    await loop.put(2, 3, 4)
    await eventually(lambda: loop.keys == [1, 2, 3, 4], "all", SECONDS)
    assert loop.told in ([1, 3], [4])


async def test_a_pause_ends_without_the_engines_thread() -> None:
    loop = Loop(0.05)
    for key in range(3):
        await loop.put(key)
    await eventually(lambda: loop.keys == [0, 1, 2], "all", SECONDS)
    assert len(loop.calls) <= 3


async def test_nothing_is_lost_or_reordered_however_they_meet() -> None:
    come: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def deliver(deltas: list[SequenceDelta], changes: list[Changes]) -> None:
        for delta in deltas:
            come[delta.key] += delta.token_ids

    handover = Handover(asyncio.get_running_loop(), deliver, lambda _: 0.0005)

    def engine() -> None:
        for number in range(5000):
            deltas = [SequenceDelta(key, 0, [number]) for key in come]
            handover.put(deltas, None, urgent=[number % 3] if number % 7 == 0 else ())

    await asyncio.to_thread(engine)
    await eventually(lambda: all(len(tokens) == 5000 for tokens in come.values()), "all", SECONDS)
    assert all(tokens == list(range(5000)) for tokens in come.values())


async def test_the_engine_waits_for_an_event_loop_that_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover_module, "_MAX_STEPS", 4)
    loop = Loop(FOREVER)
    put = []

    def engine() -> None:
        for key in range(6):
            loop.handover.put([SequenceDelta(key, 0, [])], None, urgent=[0] if key == 0 else ())
            put.append(key)

    thread = threading.Thread(target=engine)
    thread.start()
    while len(put) < 4:  # the event loop is blocked meanwhile
        pass
    assert len(put) == 4
    await asyncio.to_thread(thread.join, SECONDS)  # there is room again, although the pause has not ended
    assert put == [0, 1, 2, 3, 4, 5]


async def test_a_closed_handover_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover_module, "_MAX_STEPS", 1)
    monkeypatch.setattr(handover_module, "_LOOK_SECONDS", 0.01)
    loop = Loop(FOREVER)
    await loop.put(1)
    await eventually(lambda: loop.keys == [1], "the first", SECONDS)
    await loop.put(2)
    blocked = asyncio.create_task(loop.put(3))
    await asyncio.sleep(0.01)
    loop.handover.close()
    await asyncio.wait_for(blocked, SECONDS)
    assert loop.keys == [1]


def test_tokens_of_a_sequence_become_one_delta_where_its_last_was() -> None:
    how = {"finish_reason": FinishReason.STOP, "stop_token_id": 14, "is_final": True}
    end = SequenceDelta(1, 0, [14], num_previous_tokens=7, **how)  # type: ignore[arg-type]
    steps = [
        [SequenceDelta(1, 0, [10], num_previous_tokens=4), SequenceDelta(1, 1, [20]), SequenceDelta(2, 0, [30])],
        [
            SequenceDelta(1, 0, [11, 12], num_previous_tokens=5),
            SequenceDelta(1, 1, [21], finish_reason=FinishReason.LENGTH),
        ],
        [end, SequenceDelta(2, 0, [31])],
    ]
    assert joined(steps) == [
        SequenceDelta(1, 1, [20, 21], finish_reason=FinishReason.LENGTH),
        SequenceDelta(1, 0, [10, 11, 12, 14], num_previous_tokens=4, **how),  # type: ignore[arg-type]
        SequenceDelta(2, 0, [30, 31]),
    ]
    assert [delta.token_ids for delta in steps[0]] == [[10], [20], [30]]


@pytest.mark.parametrize(
    "apart",
    [
        SequenceDelta(1, 0, [11], logprobs=[PositionLogprobs([11], [-0.5], 1)]),
        SequenceDelta(1, 0, [11], prompt_logprobs=[]),
        SequenceDelta(1, 0, [], finish_reason=FinishReason.ABORT, is_final=True),
    ],
)
def test_what_has_scores_or_no_tokens_stays_by_itself(apart: SequenceDelta) -> None:
    before = SequenceDelta(1, 0, [10])
    assert joined([[before], [apart]]) == [before, apart]
    after = SequenceDelta(1, 0, [12])
    if apart.token_ids:
        assert joined([[before], [apart], [after]]) == [before, apart, after]
