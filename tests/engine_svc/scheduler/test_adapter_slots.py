"""Slots for adapters: who gets one, which is reused, and that no request starves or blocks another."""

from __future__ import annotations

import pytest

from engine_svc.adapters.adapter import Adapter
from engine_svc.plan import AdapterChanges
from engine_svc.requests.admission import make_sequences
from engine_svc.requests.request import GenerationRequest
from engine_svc.requests.sequence import LiveRequest, Sequence, SequenceState
from engine_svc.scheduler.adapter_slots import MOST_OVERTAKING, AdapterSlots
from engine_svc.scheduler.scheduler import Scheduler
from quire.options.scheduler import SchedulerOptions
from quire.sampling import SamplingParameters
from tests.support.fake_adapters import FakeAdapters
from tests.support.kv_cache import make_manager


class Setup:
    """A scheduler whose adapters are read during the step that starts reading them."""

    def __init__(self, slots: int = 1, places: int = 1, seqs: int = 8, blocks: int = 200) -> None:
        self.slots = AdapterSlots(slots, places)
        self.device = FakeAdapters(slots, places)
        options = SchedulerOptions(max_num_seqs=seqs)
        self.scheduler = Scheduler(make_manager(blocks, 4), options, 256, adapters=self.slots)
        self.arrivals = 0
        self.changes: list[AdapterChanges] = []

    def add(self, name: str, rank: int = 0, prompt: int = 4) -> Sequence:
        """Adds a request for an adapter; an empty name means the base model."""
        self.arrivals += 1
        adapter = Adapter(name, name, name, 4, "", sum(name.encode()), name) if name else None
        request = GenerationRequest(name, [1] * prompt, SamplingParameters(), adapter=adapter)
        live = LiveRequest(self.arrivals, request, frozenset(), 0.0)
        live.sequences = make_sequences(live, (rank, self.arrivals), 1000, seed=0)
        self.slots.enter(adapter)
        self.scheduler.add(live.sequences[0])
        return live.sequences[0]

    def end(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            self.scheduler.finish(sequence)
            self.slots.leave(sequence.owner.request.adapter)
        self.scheduler.check()

    def step(self) -> list[str]:
        """Runs a step; returns the adapters of the sequences in it."""
        batch = self.scheduler.schedule()
        self.changes.append(batch.adapters)
        for each in batch.sequences.values():
            if each.num_pending_tokens:
                each.append([1], 1)
        self.device.begin(batch.adapters)
        assert self.slots.end_reads(self.device.take_read()) == []
        self.scheduler.check()
        return sorted(sequence.owner.request.request_id for sequence in batch.sequences.values())

    def steps(self, count: int = 3) -> list[str]:
        """Runs several steps; returns the adapters of the last one."""
        return [self.step() for _ in range(count)][-1]


def test_a_sequence_that_waits_for_a_slot_stands_in_nobodys_way() -> None:
    setup = Setup()
    a = setup.add("a")
    assert setup.steps() == ["a"]
    b, base, again = setup.add("b"), setup.add(""), setup.add("a")
    assert setup.step() == ["", "a", "a"]
    assert b.state is SequenceState.WAITING
    assert setup.scheduler.num_waiting == 1
    assert setup.scheduler.num_waiting_tokens == 4
    setup.end(a, again)
    assert setup.steps() == ["", "b"]
    setup.end(b, base)
    assert not setup.scheduler.has_work


def test_adapters_are_read_while_others_run_and_placed_when_they_are_there() -> None:
    setup = Setup(slots=2, places=2)
    base = setup.add("")
    a = setup.add("a")
    assert setup.step() == [""]
    assert setup.changes[-1].read == {1: "a"}
    assert setup.step() == ["", "a"]
    assert [(each.slot, each.key) for each in setup.changes[-1].placed] == [(1, 1)]
    assert setup.step() == ["", "a"]
    assert setup.changes[-1] == AdapterChanges()
    setup.end(a)
    again = setup.add("a")
    assert setup.step() == ["", "a"]  # its adapter is still in a slot
    assert setup.changes[-1] == AdapterChanges()
    setup.end(base, again)


def test_host_memory_keeps_what_was_used_last() -> None:
    setup = Setup(slots=1, places=2)
    for name in ("a", "b", "a", "c", "a", "b"):
        sequence = setup.add(name)
        assert setup.steps() == [name]
        setup.end(sequence)
    reads = [folder for changes in setup.changes for folder in changes.read.values()]
    assert reads == ["a", "b", "c", "b"]


def test_the_device_keeps_what_was_used_last() -> None:
    setup = Setup(slots=2, places=2)
    for name in ("a", "b", "a", "c", "a"):
        sequence = setup.add(name)
        assert setup.steps() == [name]
        setup.end(sequence)
    placed = [(each.slot, each.key) for changes in setup.changes for each in changes.placed]
    assert placed == [(1, 1), (2, 2), (2, 3)]


def test_what_somebody_waits_for_stays_in_memory_for_those_behind_him() -> None:
    setup = Setup(places=2)
    a = setup.add("a")
    setup.steps()
    b, c = setup.add("b"), setup.add("c")
    setup.steps()
    assert [folder for changes in setup.changes for folder in changes.read.values()] == ["a", "b"]
    setup.end(a)
    assert setup.steps() == ["b"]
    setup.end(b)
    assert setup.steps() == ["c"]
    setup.end(c)


def test_nobody_starves_behind_an_adapter_that_is_always_asked_for() -> None:
    setup = Setup(seqs=4)
    running = [setup.add("a") for _ in range(4)]
    setup.steps()
    b = setup.add("b")
    passed = 0
    for _ in range(10 * MOST_OVERTAKING):
        setup.end(running.pop(0))
        running.append(setup.add("a"))
        setup.step()
        if b.adapter_slot:
            break
        passed += running[-1].state is SequenceState.RUNNING
    assert b.state is SequenceState.RUNNING
    assert passed == MOST_OVERTAKING


def test_slots_are_claimed_in_order() -> None:
    setup = Setup(slots=2, places=4, seqs=4)
    running = {name: setup.add(name) for name in "ab"}
    setup.steps()
    first, second = setup.add("c"), setup.add("d")
    for _ in range(MOST_OVERTAKING):
        over = setup.add("a")
        setup.step()
        assert over.state is SequenceState.RUNNING
        setup.end(over)
    late = [setup.add("a"), setup.add("b")]
    setup.steps()
    assert [each.state for each in late] == [SequenceState.WAITING] * 2  # both slots are claimed
    setup.end(running["b"])
    setup.steps()
    assert [each.adapter_slot > 0 for each in (first, second)] == [True, False]
    setup.end(running["a"])
    setup.steps()
    assert [each.adapter_slot > 0 for each in (first, second)] == [True, True]
    setup.end(first, second)
    assert setup.steps() == ["a", "b"]
    setup.end(*late)


def test_a_claim_goes_with_those_who_made_it() -> None:
    setup = Setup(places=2)
    a = setup.add("a")
    setup.steps()
    b = setup.add("b")
    for _ in range(MOST_OVERTAKING):
        over = setup.add("a")
        setup.step()
        setup.end(over)
    waiting = setup.add("a")
    setup.steps()
    assert waiting.state is SequenceState.WAITING
    setup.end(b)
    assert setup.steps() == ["a", "a"]
    c = setup.add("c")
    setup.end(waiting)
    for _ in range(MOST_OVERTAKING):
        over = setup.add("a")
        setup.step()
        setup.end(over)
    setup.add("a")
    setup.end(a)
    assert setup.steps() == ["c"]  # c now claims what `waiting` had claimed
    assert c.adapter_slot


def test_who_comes_first_joins_though_the_slot_is_claimed_by_another() -> None:
    setup = Setup(places=2)
    a = setup.add("a")
    setup.steps()
    b = setup.add("b")
    for _ in range(MOST_OVERTAKING + 1):
        over = setup.add("a")
        setup.step()
        if over.state is SequenceState.RUNNING:
            setup.end(over)
    urgent = setup.add("a", rank=-1)
    setup.steps()
    assert urgent.state is SequenceState.RUNNING
    setup.end(a, urgent)
    assert "b" in setup.steps()
    setup.end(b)


def test_a_preempted_sequence_gives_its_slot_back() -> None:
    setup = Setup(places=2, blocks=6)
    read = setup.add("b")
    setup.steps()
    setup.end(read)
    first = setup.add("", prompt=8)
    second = setup.add("a", prompt=6)
    setup.steps()
    assert second.adapter_slot == 1
    while second.state is SequenceState.RUNNING:
        setup.step()
    assert second.state is SequenceState.PREEMPTED
    assert second.adapter_slot == 0
    urgent = setup.add("b", rank=-1)
    setup.end(first)
    assert setup.step() == ["b"]
    assert setup.steps() == ["b"]
    setup.end(urgent)
    setup.steps()
    assert second.state is SequenceState.RUNNING
    setup.end(second)


def test_a_sequence_that_waits_for_its_adapter_holds_no_blocks() -> None:
    setup = Setup(places=2)
    parent = setup.add("a")
    setup.steps()
    blocker = setup.add("b")
    for _ in range(MOST_OVERTAKING + 1):
        over = setup.add("a")
        setup.step()
        if over.state is SequenceState.RUNNING:
            setup.end(over)
    child = setup.add("a", prompt=9)
    setup.scheduler.schedule()
    assert len(child.table) == 0
    setup.end(parent, blocker, child)


def test_changes_of_a_step_that_failed_are_made_again() -> None:
    setup = Setup(slots=1, places=2)
    sequence = setup.add("a")
    batch = setup.scheduler.schedule()
    setup.slots.redo(batch.adapters)
    assert setup.step() == []
    assert setup.changes[-1].dropped == [1]
    assert setup.changes[-1].read == {2: "a"}
    batch = setup.scheduler.schedule()
    assert [each.key for each in batch.adapters.placed] == [2]
    setup.slots.redo(batch.adapters)
    setup.step()
    assert [each.key for each in setup.changes[-1].placed] == [2]
    setup.end(sequence)


def test_an_adapter_that_is_retired_goes_with_its_last_request() -> None:
    setup = Setup()
    sequence = setup.add("a")
    setup.steps()
    gone: list[str] = []
    adapter = sequence.owner.request.adapter
    assert adapter is not None
    setup.slots.retire(adapter, lambda: gone.append("a"))
    assert setup.slots.num_requests(adapter.key) == 1
    assert not gone
    setup.end(sequence)
    assert gone == ["a"]
    assert setup.slots.num_requests(adapter.key) == 0
    setup.step()
    assert setup.changes[-1].dropped == [1]
    setup.slots.retire(adapter, lambda: gone.append("again"))
    assert gone == ["a", "again"]
    assert not setup.scheduler.has_work


@pytest.mark.parametrize("fails", [False, True])
def test_what_comes_of_an_adapter_that_nobody_waits_for_any_more_is_forgotten(fails: bool) -> None:
    setup = Setup()
    sequence = setup.add("a")
    batch = setup.scheduler.schedule()
    setup.end(sequence)
    if fails:
        setup.slots.redo(batch.adapters)
    else:
        assert setup.slots.end_reads({1: "it is damaged"}) == []
    setup.scheduler.check()
    setup.step()
    assert not setup.scheduler.has_work


@pytest.mark.parametrize("num_steps", [1, 2])
def test_a_request_may_end_while_its_adapter_is_on_its_way(num_steps: int) -> None:
    setup = Setup()
    sequence = setup.add("a")
    setup.steps(num_steps)
    setup.end(sequence)
    other = setup.add("b")
    assert setup.steps(4) == ["b"]
    setup.end(other)
