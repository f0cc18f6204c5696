"""Adapters of pooling requests: brought to the device, shared, taken away; and what happens if they cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine_svc.adapters.adapter import Adapter
from engine_svc.core.pooling_engine import PoolingEngine
from engine_svc.pooling_plan import PooledOutput, PooledSequence, PoolingPlan, PoolingResult
from engine_svc.requests.outputs import FinishReason, SequenceDelta
from engine_svc.requests.pooling import PoolingFacts, PoolingInput, PoolingRequest
from engine_svc.upkeep import Upkeep
from quire.errors import REQUEST_FAULT
from quire.options.lora import LoraOptions
from quire.options.scheduler import SchedulerOptions
from quire.sleep import KV_CACHE, WEIGHTS, SleepLevel
from tests.support.fake_adapters import FakeAdapters

Engine = PoolingEngine[PoolingRequest, PooledSequence, PooledOutput]


class Steps:
    """Each output tells the folder of the adapter that it was computed with."""

    def __init__(self, num_slots: int, num_places: int, error: Callable[[str], str] = lambda folder: "") -> None:
        self.adapters = FakeAdapters(num_slots, num_places, steps=lambda folder: 1, error=error)
        self.fails = False
        self.folders: list[list[str]] = []

    def run(self, plan: PoolingPlan) -> PoolingResult:
        self.adapters.begin(plan.adapters)
        if self.fails:
            self.fails = False
            raise RuntimeError("broken")
        self.folders.append([self.adapters.folder_of(each.adapter_slot) for each in plan.sequences])
        outputs = [PooledOutput(folder.encode(), (1,), 1) for folder in self.folders[-1]]
        return PoolingResult(outputs, 1.0, 1.0, 0, self.adapters.take_read())

    def upkeep(self, command: Upkeep) -> list[str]:
        return []

    def reset_encoder_cache(self) -> None: ...

    def wake_by(self, wake: Callable[[], None]) -> None: ...

    def check_alive(self, asks: bool = False) -> None: ...

    def close(self) -> None: ...


def adapter(name: str, key: int) -> Adapter:
    return Adapter(name, name, "", 4, "", key, f"/{name}")


A, B, C = (adapter(name, key) for key, name in enumerate("abc", 1))


def make_engine(steps: Steps, slots: int = 1, places: int = 1) -> Engine:
    lora = LoraOptions(enable_lora=True, max_loras=slots, max_cpu_loras=places)
    facts = PoolingFacts(tasks=("embed",), embedding_size=1)
    return PoolingEngine(steps, facts, SchedulerOptions(max_num_seqs=2), 100, lambda: 0.0, lora)


def request(own: Adapter | None, count: int = 1) -> PoolingRequest:
    return PoolingRequest("r", (PoolingInput([1]),) * count, model=own.name if own else "", adapter=own)


def run_all(engine: Engine) -> dict[int, SequenceDelta]:
    found: dict[int, SequenceDelta] = {}
    for _ in range(200):
        if not engine.has_work:
            break
        found |= {delta.key: delta for delta in engine.step()}
        engine.check()
    assert not engine.has_work
    return found


def folders(delta: SequenceDelta) -> list[str]:
    assert delta.finish_reason is FinishReason.STOP, delta.error
    return [output.data.decode() for output in delta.pooled]


def test_requests_run_with_their_adapters_side_by_side() -> None:
    steps = Steps(2, 2)
    engine = make_engine(steps, 2, 2)
    for key, own in enumerate((A, B, None, A)):
        engine.add(key, request(own, 2))
    found = run_all(engine)
    assert [folders(found[key]) for key in range(4)] == [["/a", "/a"], ["/b", "/b"], ["", ""], ["/a", "/a"]]
    assert sorted(each.name for each in engine.load().adapters) == ["a", "b"]
    assert steps.adapters.num_reads == 2
    assert any(set(step) == {"/a", "/b"} for step in steps.folders)


def test_more_adapters_than_slots_take_turns_and_no_request_waits_for_ever() -> None:
    engine = make_engine(Steps(1, 2), places=2)
    for key in range(150):
        engine.add(key, request((A, B, C, None)[key % 4], 1 + key % 3))
    found = run_all(engine)
    assert [set(folders(found[key])) for key in range(8)] == [{"/a"}, {"/b"}, {"/c"}, {""}] * 2


def test_an_idle_engine_waits_while_an_adapter_is_read() -> None:
    engine = make_engine(Steps(1, 1))
    engine.add(1, request(A))
    engine.step()
    assert engine.is_waiting
    assert [(each.name, each.waiting_sequences) for each in engine.load().adapters] == [("a", 1)]
    run_all(engine)
    assert not engine.is_waiting


def test_an_adapter_that_cannot_be_read_fails_its_requests_alone() -> None:
    engine = make_engine(Steps(1, 1, lambda folder: "it is gone" if folder == "/a" else ""))
    for key, own in enumerate((A, None, A)):
        engine.add(key, request(own))
    found = run_all(engine)
    assert folders(found[1]) == [""]
    for key in (0, 2):
        error = found[key].error
        assert error is not None
        assert (error.reason, error.message) == (REQUEST_FAULT, "The adapter a cannot be read: it is gone.")


def test_a_retired_adapter_goes_with_its_last_request() -> None:
    engine, gone = make_engine(Steps(1, 1)), list[str]()
    engine.add(1, request(A, 3))
    engine.retire_adapter(A, lambda: gone.append("a"))
    assert (engine.num_requests_with(A), gone) == (1, [])
    assert folders(run_all(engine)[1]) == ["/a"] * 3
    assert (engine.num_requests_with(A), gone, engine.load().adapters) == (0, ["a"], ())
    engine.add(2, request(B))
    assert folders(run_all(engine)[2]) == ["/b"]


@pytest.mark.parametrize("level", [SleepLevel.WEIGHTS_KEPT, SleepLevel.WEIGHTS_FORGOTTEN])
def test_adapters_are_there_again_after_sleep(level: SleepLevel) -> None:
    steps = Steps(1, 1)
    engine = make_engine(steps)
    engine.add(1, request(A, 5))
    while not engine.load().running_sequences and not any(steps.folders):
        engine.step()
    engine.rest.sleep(level)
    engine.check()
    if level is SleepLevel.WEIGHTS_FORGOTTEN:
        steps.adapters.forget_all()
    engine.rest.wake_up([WEIGHTS, KV_CACHE])
    assert folders(run_all(engine)[1]) == ["/a"] * 5


def test_changes_of_a_failed_step_are_made_again() -> None:
    steps = Steps(1, 1)
    engine = make_engine(steps)
    engine.add(1, request(A))
    engine.step()
    steps.fails = True
    assert folders(run_all(engine)[1]) == ["/a"]


def test_an_aborted_request_leaves_its_slot() -> None:
    engine = make_engine(Steps(1, 1))
    engine.add(1, request(A, 50))
    for _ in range(5):
        engine.step()
    engine.add(2, request(B))
    engine.abort(1)
    assert folders(run_all(engine)[2]) == ["/b"]
