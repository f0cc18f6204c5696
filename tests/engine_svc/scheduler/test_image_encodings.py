"""Which images are encoded, and which sequences wait for them."""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import replace

import pytest

from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.plan import EncodedRows, ImageChanges, SamplingPlan
from engine_svc.requests.request import GenerationRequest
from engine_svc.requests.sequence import LiveRequest, Sequence
from engine_svc.scheduler.image_encodings import ImageEncodings
from quire.images import Image, ImageInput


def image(number: int, offset: int, num_tokens: int = 4) -> Image:
    return Image(offset, num_tokens, (ImageInput("pixel_values", "uint8", (1,), bytes([number])),))


def sequence(arrival: int, *images: Image) -> Sequence:
    live = LiveRequest(arrival, GenerationRequest("r", list(range(100)), images=images), frozenset(), 0.0)
    return Sequence(live, 0, (0, arrival, 0), SamplingPlan(), 200, BlockTable())


def begun(subject: ImageEncodings) -> list[int]:
    return list(subject.take_changes().begun)


def test_a_sequence_waits_for_all_of_its_images() -> None:
    subject, first = ImageEncodings(100), sequence(1, image(1, 0), image(2, 10), image(1, 20))
    assert not subject.admit(first, 0)
    assert subject.num_set_aside == 1
    assert begun(subject) == [1, 2]  # the third is the first again
    assert subject.is_changing
    assert subject.end({1: ""}) == []
    assert subject.settle() == []
    assert subject.end({2: ""}) == []
    assert not subject.is_changing
    assert subject.settle() == [first]
    assert subject.num_set_aside == 0
    assert subject.admit(first, 0)
    assert subject.start(first, 0) == [1, 2, 1]
    subject.check([])


def test_what_is_computed_needs_no_encoding() -> None:
    subject, first = ImageEncodings(100), sequence(1, image(1, 0), image(2, 10))
    assert subject.admit(first, 14)
    assert subject.start(first, 14) == [0, 0]
    assert not subject.admit(first, 13)
    assert begun(subject) == [1]
    subject.end({1: ""})
    assert subject.settle() == [first]
    assert subject.start(first, 13) == [0, 1]


def test_images_that_come_again_are_encoded_once() -> None:
    """Even if several sequences ask for one at the same time. The one used last stays longest."""
    subject, some = ImageEncodings(8), [sequence(number, image(1, number)) for number in range(3)]
    assert not subject.admit(some[0], 0)
    assert not subject.admit(some[1], 0)
    assert begun(subject) == [1]
    subject.end({1: ""})
    assert subject.settle() == some[:2]
    assert [subject.start(each, 0) for each in some[:2]] == [[1], [1]]
    assert subject.admit(some[2], 0)
    assert subject.start(some[2], 0) == [1]
    for number, dropped in ((2, []), (3, [1]), (4, [2])):
        other = sequence(number + 10, image(number, 0))
        assert not subject.admit(other, 0)
        changes = subject.take_changes()
        assert (changes.dropped, list(changes.begun)) == (dropped, [number])
        subject.end({number: ""})
        assert subject.settle() == [other]
        assert subject.start(other, 0) == [number]


def test_the_first_never_waits_for_what_later_ones_keep() -> None:
    """The third needs what the first needed, and would keep it until the second, which comes before it, has started."""
    subject = ImageEncodings(7)
    first, second, third = sequence(1, image(1, 0)), sequence(2, image(2, 0)), sequence(3, image(1, 0), image(3, 10))
    assert [subject.admit(each, 0) for each in (first, second, third)] == [False] * 3
    assert begun(subject) == [1]
    subject.end({1: ""})
    assert subject.settle() == [first]
    assert begun(subject) == []  # it is needed by one that may start
    assert subject.admit(first, 0)
    subject.start(first, 0)
    assert subject.settle() == []
    changes = subject.take_changes()
    assert (changes.dropped, list(changes.begun)) == ([1], [2])
    subject.end({2: ""})
    assert subject.settle() == [second]
    assert subject.admit(second, 0)
    subject.start(second, 0)
    subject.settle()
    assert len(begun(subject)) == 2  # the first image again, and the third
    subject.check([third])


def test_no_more_is_encoded_than_fits() -> None:
    """Unless one sequence alone needs more. What sequences need that have not started stays."""
    subject = ImageEncodings(10)
    large, small = sequence(1, image(1, 0, 8), image(2, 10, 8)), sequence(2, image(3, 0))
    assert not subject.admit(large, 0)
    assert not subject.admit(small, 0)
    assert begun(subject) == [1, 2]
    subject.end({1: "", 2: ""})
    assert subject.settle() == [large]
    assert begun(subject) == []
    assert subject.admit(large, 0)
    assert subject.start(large, 0) == [1, 2]
    assert subject.settle() == []
    changes = subject.take_changes()
    assert (changes.dropped, list(changes.begun)) == ([1, 2], [3])


def test_a_sequence_that_ends_takes_its_wishes_along() -> None:
    subject, first = ImageEncodings(100), sequence(1, image(1, 0))
    assert not subject.admit(first, 0)
    assert begun(subject) == [1]
    assert subject.forget(first)
    assert subject.take_changes().dropped == [1]
    assert subject.end({1: ""}) == []  # it was encoded all the same
    assert not subject.is_changing
    assert not subject.forget(first)
    assert not subject.admit(first, 0)
    assert subject.forget(first)
    assert not subject.is_changing  # it had not even begun


def test_an_image_that_cannot_be_encoded_fails_those_who_need_it() -> None:
    subject = ImageEncodings(100)
    some = [sequence(1, image(1, 0)), sequence(2, image(1, 5), image(2, 20)), sequence(3, image(2, 0))]
    assert not any(subject.admit(each, 0) for each in some)
    assert begun(subject) == [1, 2]
    assert subject.end({1: "broken"}) == [(some[0], "broken"), (some[1], "broken")]
    for each in some[:2]:
        subject.forget(each)
    subject.end({2: ""})
    assert subject.settle() == [some[2]]
    subject.check([some[2]])


@pytest.mark.parametrize("forgets", [False, True])
def test_lost_work_is_done_again(forgets: bool) -> None:
    subject, some = ImageEncodings(100), [sequence(number, image(number, 0)) for number in (1, 2)]
    assert not subject.admit(some[0], 0)
    subject.end(dict.fromkeys(begun(subject), ""))
    assert not subject.admit(some[1], 0)
    changes = subject.take_changes()
    if forgets:
        subject.forget_memory()
    else:
        subject.redo(changes)
    assert subject.settle() == ([] if forgets else [some[0]])
    assert len(begun(subject)) == (2 if forgets else 1)


class Elsewhere:
    """Encodes images on other workers."""

    def __init__(self) -> None:
        self.asked: list[tuple[Image, Future[EncodedRows | None]]] = []

    def pull(self, wanted: Image) -> Future[EncodedRows | None]:
        answer: Future[EncodedRows | None] = Future()
        self.asked.append((wanted, answer))
        return answer


def encoded_at(encoder: str, number: int, offset: int = 0) -> Image:
    return replace(image(number, offset), encoder=encoder)


ROWS = EncodedRows("float32", 4, 1, 0, [], True, bytes(16))


def test_what_others_encode_is_received_and_the_rest_encoded_here() -> None:
    other = Elsewhere()
    subject = ImageEncodings(100, pull=other.pull)
    first = sequence(1, encoded_at("a:1", 1), encoded_at("b:1", 2, 10), image(3, 20))
    assert not subject.admit(first, 0)
    assert [wanted.encoder for wanted, _ in other.asked] == ["a:1", "b:1"]
    changes = subject.take_changes()
    assert (list(changes.begun), changes.received) == ([3], {})
    other.asked[0][1].set_result(ROWS)
    other.asked[1][1].set_result(None)
    assert subject.is_changing
    changes = subject.take_changes()
    assert (list(changes.begun), changes.received) == ([2], {1: ROWS})
    assert changes.begun[2].digest == image(2, 10).digest
    subject.end({1: "", 2: "", 3: ""})
    assert subject.settle() == [first]
    assert (subject.num_pulled, subject.num_encoded, subject.num_failed_pulls) == (1, 2, 1)
    assert subject.start(first, 0) == [1, 2, 3]
    subject.check([])


@pytest.mark.parametrize("is_fault", [True, False])
def test_a_pull_that_breaks_is_one_in_vain(is_fault: bool) -> None:
    other = Elsewhere()
    subject, first = ImageEncodings(100, pull=other.pull), sequence(1, encoded_at("a:1", 1))
    subject.admit(first, 0)
    if is_fault:
        other.asked[0][1].set_exception(RuntimeError("broken"))
    else:
        other.asked[0][1].cancel()
    assert begun(subject) == [1]
    assert subject.num_failed_pulls == 1


def test_what_nobody_waits_for_is_no_longer_asked_for() -> None:
    """The ranks have heard nothing of it."""
    other = Elsewhere()
    subject, first = ImageEncodings(100, pull=other.pull), sequence(1, encoded_at("a:1", 1))
    subject.admit(first, 0)
    assert subject.forget(first)
    assert other.asked[0][1].cancelled()
    assert not subject.is_changing
    assert subject.take_changes() == ImageChanges()
    subject.check([])


def test_an_image_that_comes_again_names_its_encoder_anew() -> None:
    """The former one may be gone."""
    other = Elsewhere()
    subject = ImageEncodings(100, pull=other.pull)
    for arrival, encoder in enumerate(("a:1", "b:1")):
        subject.admit(sequence(arrival, encoded_at(encoder, 1)), 0)
        other.asked[-1][1].set_result(ROWS)
        subject.end(dict.fromkeys(subject.take_changes().received, ""))
        subject.forget_memory()
        subject.take_changes()
    subject.admit(sequence(3, encoded_at("b:1", 1)), 0)
    assert [wanted.encoder for wanted, _ in other.asked] == ["a:1", "b:1", "b:1"]


@pytest.mark.parametrize("seed", range(20))
def test_random_lives(seed: int) -> None:
    """The bookkeeping is always right, ranks hold what a sequence starts with, and none waits forever."""
    source, subject = random.Random(seed), ImageEncodings(12)
    waiting: list[Sequence] = []
    arrived, started, held, under_way = 0, 0, set[int](), dict[int, None]()

    def step(mishaps: bool = True) -> None:
        nonlocal started
        waiting_now = [each for each in waiting if each not in set(subject.set_aside)]
        used: set[int] = set()
        for each in waiting_now:
            computed = source.choice((0, 0, 30))
            if subject.admit(each, computed) and source.random() < 0.7:
                used |= set(subject.start(each, computed)) - {0}
                waiting.remove(each)
                started += 1
        subject.check(waiting)
        changes = subject.take_changes()
        assert used <= held
        held.difference_update(changes.dropped)
        for key in changes.dropped:
            under_way.pop(key, None)
        under_way.update(dict.fromkeys(changes.begun))
        ended = [key for key in under_way if source.random() < 0.5]
        for key in ended:
            del under_way[key]
        for failed, _ in subject.end({key: "broken" if mishaps and source.random() < 0.1 else "" for key in ended}):
            if failed in waiting:
                subject.forget(failed)
                waiting.remove(failed)
        held.update(key for key in ended if key in {each.key for each in subject._entries.values() if each.is_ready})
        if mishaps and source.random() < 0.05:
            subject.forget_memory()
            held.clear()
            under_way.clear()
            subject.take_changes()
        if mishaps and waiting and source.random() < 0.1:
            gone = waiting.pop(source.randrange(len(waiting)))
            subject.forget(gone)
        subject.settle()
        subject.check(waiting)

    for _ in range(200):
        if source.random() < 0.5:
            arrived += 1
            images = [image(source.randrange(8), offset, source.randint(1, 9)) for offset in range(0, 30, 10)]
            waiting.append(sequence(arrived, *images[: source.randint(0, 3)]))
        step()
    for _ in range(500):
        step(mishaps=False)  # which would make room for those that wait for each other
    assert not waiting
    assert started
