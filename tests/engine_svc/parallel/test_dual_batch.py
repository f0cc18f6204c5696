"""Two halves take turns: only one computes, while the other is in a collective."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from engine_svc.parallel.dual_batch import DualBatch

SECONDS = 60.0
NOTHING = torch.zeros(1)


class Steps:
    """Records what the halves do, in order."""

    def __init__(self, batch: DualBatch) -> None:
        self.batch, self.seen = batch, list[str]()

    def half(self, name: str, collectives: int) -> Callable[[], str]:
        def run() -> str:
            for number in range(collectives):
                self.seen.append(f"{name} computes {number} of {self.batch.share(5)}")
                self.batch.communicate(lambda number=number: self._note(f"{name} sends {number}"))  # type: ignore[misc]
            self.seen.append(f"{name} ends")
            return name

        return run

    def _note(self, text: str) -> torch.Tensor:
        self.seen.append(text)
        return NOTHING


@pytest.fixture
def batch() -> DualBatch:
    return DualBatch()


def test_what_is_not_cut_just_communicates(batch: DualBatch) -> None:
    assert batch.communicate(lambda: NOTHING) is NOTHING
    assert batch.share(5) == 5


def test_collectives_of_both_alternate(batch: DualBatch) -> None:
    for _ in range(3):
        steps = Steps(batch)
        assert batch.run(steps.half("a", 3), steps.half("b", 3)) == ("a", "b")
        sent = [step for step in steps.seen if "sends" in step]
        assert sent == ["a sends 0", "b sends 0", "a sends 1", "b sends 1", "a sends 2", "b sends 2"]
        computed = [step for step in steps.seen if "sends" not in step]
        assert computed == [
            "a computes 0 of 3", "b computes 0 of 2", "a computes 1 of 3", "b computes 1 of 2", "a computes 2 of 3",
            "b computes 2 of 2", "a ends", "b ends",
        ]  # fmt: skip
    batch.close()


def test_one_computes_while_the_other_communicates(batch: DualBatch) -> None:
    has_computed = threading.Event()

    def first() -> bool:
        def collective() -> torch.Tensor:
            return torch.tensor(has_computed.wait(SECONDS))

        return bool(batch.communicate(collective))

    def second() -> bool:
        has_computed.set()
        return True

    assert batch.run(first, second) == (True, True)
    batch.close()


def test_halves_that_communicate_nothing_run_one_after_the_other(batch: DualBatch) -> None:
    steps = Steps(batch)
    batch.run(steps.half("a", 0), steps.half("b", 2))
    assert steps.seen[0] == "a ends"
    assert len(steps.seen) == 6
    batch.close()


@pytest.mark.parametrize("in_collective", [False, True])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_half_that_fails_ends_the_other(batch: DualBatch, number: int, before: int, in_collective: bool) -> None:
    steps = Steps(batch)

    def fail() -> torch.Tensor:
        raise ValueError("it is broken")

    def failing() -> str:
        steps.half("a", before)()
        return str(batch.communicate(fail) if in_collective else fail())

    halves = [steps.half("b", 3), steps.half("b", 3)]
    halves[number] = failing
    for _ in range(2):
        with pytest.raises(ValueError, match="it is broken"):
            batch.run(*halves)
        assert "b ends" not in steps.seen
    steps = Steps(batch)
    assert batch.run(steps.half("a", 2), steps.half("b", 2)) == ("a", "b")
    batch.close()
    assert batch.run(steps.half("a", 2), steps.half("b", 2)) == ("a", "b")  # also after its thread has ended
    batch.close()


def test_the_second_half_runs_as_the_first(batch: DualBatch) -> None:
    """Torch's thread-local settings are the same for both halves."""

    def facts() -> tuple[bool, int]:
        return torch.is_inference_mode_enabled(), torch.get_num_threads()

    for mode in (True, False):
        with torch.inference_mode(mode):
            first, second = batch.run(facts, facts)
        assert first == second
        assert first[0] is mode
    batch.close()


class Stream:
    """A fake GPU stream that records its operations."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name, self.device = log, name, torch.device("cpu")

    def record_event(self) -> str:
        self.log.append(f"{self.name}: event")
        return f"event {len(self.log)}"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name}: behind {event}")


class Sent(torch.Tensor):
    """A tensor that records which streams use it."""

    log: list[str]

    def record_stream(self, stream: Stream) -> None:  # type: ignore[override]
        self.log.append(f"kept for {stream.name}")


def test_collectives_on_a_gpu_are_in_a_stream_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collectives wait for what was computed before, and what depends on them waits for them. The streams are fakes."""
    log: list[str] = []
    computing, beside = Stream(log, "computing"), Stream(log, "beside")
    current = [computing]

    @contextlib.contextmanager
    def entered(stream: Stream | None) -> Iterator[None]:
        current.append(stream or current[-1])
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: beside)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", entered)
    batch, found = DualBatch(torch.device("cuda")), torch.zeros(1).as_subclass(Sent)
    found.log = log

    def collective() -> torch.Tensor:
        log.append(f"{current[-1].name}: sent")
        return found

    batch.run(lambda: batch.communicate(collective), lambda: NOTHING)
    assert log == [
        "computing: event", "beside: behind event 1", "beside: sent", "beside: event", "computing: behind event 4",
        "kept for computing",
    ]  # fmt: skip
    batch.close()
