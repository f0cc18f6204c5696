"""Grammars are compiled once, in other threads, and kept as long as there is room."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from engine_svc.structured import grammars as module
from engine_svc.structured.follower import Endings
from engine_svc.structured.grammars import Grammars, Prepared, Wanted
from quire.errors import DeadlineExceeded, FailedPrecondition, InvalidRequest, StartupError
from quire.structured.base import Constraint
from quire.structured.vocabulary import Vocabulary
from tests.support.grammars import VOCABULARY_SIZE, make_grammars, matching, spell

SECONDS = 60.0


class Woken:
    """Waits for prepared grammars."""

    def __init__(self, grammars: Grammars) -> None:
        self.grammars = grammars
        self.event = threading.Event()
        grammars.wake_by(self.event.set)

    def take(self) -> list[Prepared]:
        while not (found := self.grammars.take()):
            assert self.event.wait(SECONDS)
            self.event.clear()
        return found


@pytest.fixture
def woken() -> Iterator[Woken]:
    made = make_grammars()
    yield Woken(made)
    made.close()


def wanted(constraint: Constraint, *outputs: list[int]) -> Wanted:
    return Wanted(constraint, Endings(frozenset(), frozenset()), None, dict(enumerate(outputs or ([],))))


def test_what_is_known_is_there_at_once(woken: Woken) -> None:
    assert woken.grammars.begin(1, wanted(matching("abc"))) is None
    assert woken.grammars.num_waiting == 1
    (prepared,) = woken.take()
    assert prepared.key == 1
    assert len(prepared.followers) == 1
    assert woken.grammars.num_waiting == 0
    followers = woken.grammars.begin(2, wanted(matching("abc"), [], []))
    assert followers is not None
    assert len(followers) == 2


def test_followers_are_as_far_as_their_outputs(woken: Woken) -> None:
    woken.grammars.begin(1, wanted(matching("abc"), spell("ab"), spell("abc")))
    (prepared,) = woken.take()
    assert [follower.is_ended for follower in prepared.followers.values()] == [False, True]


def test_what_nobody_can_read_is_an_error_and_not_kept(woken: Woken) -> None:
    bad = Constraint.of("guidance", b"start: nothing")
    for key in (1, 2):
        assert woken.grammars.begin(key, wanted(bad)) is None
        (prepared,) = woken.take()
        assert isinstance(prepared.error, InvalidRequest)


def test_the_grammars_kept_are_bounded(woken: Woken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 2)
    for key, pattern in enumerate("abc"):
        woken.grammars.begin(key, wanted(matching(pattern)))
        woken.take()
    assert woken.grammars.begin(10, wanted(matching("b"))) is not None
    assert woken.grammars.begin(11, wanted(matching("c"))) is not None
    assert woken.grammars.begin(12, wanted(matching("a"))) is None


@pytest.mark.parametrize("error", [StartupError("no folder"), FailedPrecondition("no bytes"), KeyError("odd")])
def test_without_a_vocabulary_all_are_refused(error: Exception) -> None:
    def load() -> Vocabulary:
        raise error

    woken = Woken(Grammars(VOCABULARY_SIZE, load))
    for key in (1, 2):
        assert woken.grammars.begin(key, wanted(matching("a"))) is None
        (prepared,) = woken.take()
        assert isinstance(prepared.error, FailedPrecondition)
    woken.grammars.close()


def test_nobody_waits_for_ever() -> None:
    released, now = threading.Event(), [0.0]

    def load() -> Vocabulary:
        released.wait(SECONDS)
        raise StartupError("too late")

    grammars = Grammars(VOCABULARY_SIZE, load, lambda: now[0])
    grammars.begin(1, wanted(matching("a")), deadline=2.0)
    grammars.begin(2, wanted(matching("a")))
    assert not grammars.has_news
    now[0] = 3.0
    assert grammars.has_news
    (prepared,) = grammars.take()
    assert (prepared.key, type(prepared.error)) == (1, DeadlineExceeded)
    now[0] = 1000.0
    (prepared,) = grammars.take()
    assert (prepared.key, type(prepared.error)) == (2, DeadlineExceeded)
    released.set()
    grammars.close()


def test_the_deepest_grammar_that_is_taken_is_read(woken: Woken) -> None:
    """Covers a chain of as many rules as fit, which the library walks recursively."""
    count = 28_750
    rules = "".join(f'r{number}: "a" r{number + 1}\n' for number in range(count))
    grammar = f'start: r0\n{rules}r{count}: "b"'.encode()
    assert 0.99 * 2**19 < len(grammar) <= 2**19
    woken.grammars.begin(1, wanted(Constraint.of("guidance", grammar)))
    (prepared,) = woken.take()
    assert prepared.followers
