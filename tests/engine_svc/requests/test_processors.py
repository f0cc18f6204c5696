"""Which logits processors a request may name."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from engine_svc.requests.processors import RequestedProcessors
from quire.errors import InvalidRequest, StartupError, Unavailable
from quire.sampling import LogitsProcessorCall
from tests.support import logits_processors
from tests.support.waiting import eventually

OWN = logits_processors.__name__
SUCCESSOR = LogitsProcessorCall(f"{OWN}.Successor", b"[1]")


def test_what_the_pattern_matches_as_a_whole_may_be_named() -> None:
    RequestedProcessors(None).check(())
    RequestedProcessors(r"tests\.support\..*").check((SUCCESSOR, LogitsProcessorCall(f"{OWN}.Broken")))
    for pattern in (None, "", "Successor", r"tests\.support", r".*Succ"):
        with pytest.raises(InvalidRequest, match="does not allow") as refused:
            RequestedProcessors(pattern).check((SUCCESSOR,))
        assert refused.value.parameter == "logits_processors"


def test_a_name_that_would_be_matched_for_ever_is_not_allowed() -> None:
    with pytest.raises(InvalidRequest, match="does not allow"):
        RequestedProcessors(r"(a|aa|a?a)+b").check((LogitsProcessorCall("a" * 256),))


def test_a_pattern_that_is_none_ends_the_start() -> None:
    with pytest.raises(StartupError, match="--logits-processor-pattern"):
        RequestedProcessors("(")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (LogitsProcessorCall(f"{OWN}.Missing"), "not a class derived"), (LogitsProcessorCall("nowhere.X"), "No module"),
        (LogitsProcessorCall("pathlib.Path"), "not a class derived"), (LogitsProcessorCall("Successor"), "no module"),
        (LogitsProcessorCall(f"{OWN}.Successor"), "TypeError.*step"),
        (LogitsProcessorCall(f"{OWN}.Successor", b"[1]", b'{"stride": 2}'), "TypeError.*stride"),
        (LogitsProcessorCall(f"{OWN}.Successor", b"[" * 5000), "cannot be created"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_refused(call: LogitsProcessorCall, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        RequestedProcessors(".*").check((call,))


async def test_a_module_that_loads_for_long_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(logits_processors, "gate", gate, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    code = f"from {OWN} import Successor, gate\ngate.wait(30)\n"
    (tmp_path / "slow_processors.py").write_text(code)
    requested, call = RequestedProcessors(".*"), LogitsProcessorCall("slow_processors.Successor", b"[1]")
    for _ in range(2):
        with pytest.raises(Unavailable, match="is being loaded"):
            requested.check((call,))
    gate.set()

    def is_loaded() -> bool:
        try:
            requested.check((call,))
        except Unavailable:
            return False
        return True

    await eventually(is_loaded)
    del sys.modules["slow_processors"]
