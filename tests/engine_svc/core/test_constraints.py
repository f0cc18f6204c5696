"""Constrained requests in the engine; the fake executor picks any token that a mask allows."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine_svc.core import constraints
from engine_svc.core.engine import Engine, EngineFacts
from engine_svc.plan import OVERFLOW, CacheSize, StepPlan, StepResult, TokenMasks
from engine_svc.requests.outputs import FinishReason
from engine_svc.requests.request import ChoiceProgress, GenerationRequest
from engine_svc.structured.grammars import Grammars
from quire.errors import DeadlineExceeded, FailedPrecondition, Internal, InvalidRequest
from quire.reasoning import ReasoningMarks
from quire.sampling import SamplingParameters
from quire.structured.base import Constraint
from quire.structured.vocabulary import Vocabulary
from tests.engine_svc.core.test_engine import Collected
from tests.support.engine_options import engine_options
from tests.support.fake_executor import FakeExecutor
from tests.support.grammars import (
    EOS,
    PERSON,
    VOCABULARY_SIZE,
    following,
    is_person,
    make_grammars,
    matching,
    spell,
    text_of,
)

SECONDS = 60.0
Make = Callable[..., Engine]
PROMPT = spell("Give me a person.")


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    """One instance for all engines of this module, none of which closes it."""
    made = make_grammars()
    yield made
    made.close()


@pytest.fixture(params=[1, 2], ids=["in_turn", "async"])
def make(request: pytest.FixtureRequest, grammars: Grammars) -> Make:
    def make(**changes: Any) -> Engine:
        facts = {"num_blocks": 64, "block_size": 4, "max_model_len": 240, "max_num_batched_tokens": 64}
        facts |= {name: changes.pop(name) for name in facts.keys() & changes.keys()}
        executor = FakeExecutor(
            VOCABULARY_SIZE, 4, verify=True, max_in_flight=request.param, on_step=changes.pop("on_step", None),
            failed_slots=changes.pop("failed_slots", None),
        )  # fmt: skip
        executor.allocate(CacheSize(facts["num_blocks"]))
        return Engine(
            executor,
            engine_options(**{"max_num_seqs": 8} | changes),
            EngineFacts(**facts, eos_token_ids=frozenset([EOS])),
            grammars=grammars,
        )

    return make


def constrained(constraint: Constraint | None, prompt: list[int] = PROMPT, **fields: Any) -> GenerationRequest:
    own = {name: fields.pop(name) for name in ("progress", "timeout_seconds") if name in fields}
    return GenerationRequest(
        "r", prompt, SamplingParameters(**{"seed": 1, "temperature": 1.5} | fields), constraint=constraint, **own
    )


def run(engine: Engine, *requests: GenerationRequest) -> Collected:
    collected, until = Collected(), time.monotonic() + SECONDS
    for key, request in enumerate(requests):
        engine.add(key, request)
    while len(collected.last) < len(requests):
        assert time.monotonic() < until
        collected.take(engine.step())
    while engine.has_work:
        assert not engine.step()
    engine.check()
    return collected


def texts(found: Collected) -> list[str]:
    return [text_of(tokens) for _, tokens in sorted(found.tokens.items())]


def test_outputs_are_valid_and_end_with_their_grammars(make: Make) -> None:
    requests = [constrained(following(PERSON), seed=seed, n=2) for seed in range(6)]
    found = run(make(), *requests)
    assert all(map(is_person, texts(found)))
    assert len(texts(found)) == 12
    assert set(found.reasons.values()) == {FinishReason.STOP}
    assert len(set(texts(found))) > 6


class Recorded(FakeExecutor):
    """Records which calls it gets."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__(VOCABULARY_SIZE, 4, max_in_flight=2)
        self.calls = calls

    def submit(self, plan: StepPlan) -> None:
        self.calls.append("submit")
        super().submit(plan)

    def send_masks(self, masks: TokenMasks) -> None:
        self.calls.append("masks")
        super().send_masks(masks)

    def collect(self) -> StepResult:
        self.calls.append("collect")
        return super().collect()


def test_a_mask_is_made_while_its_forward_pass_runs(grammars: Grammars) -> None:
    """The next step is submitted before the last one's tokens are known; only then are its masks made."""
    calls: list[str] = []
    executor = Recorded(calls)
    executor.allocate(CacheSize(64))
    facts = EngineFacts(num_blocks=64, block_size=4, max_model_len=240, max_num_batched_tokens=64)
    engine = Engine(executor, engine_options(max_num_seqs=8), facts, grammars=grammars)
    run(engine, constrained(matching("[ab]{9}"), max_tokens=4))
    assert calls == ["submit", "masks", *["submit", "collect", "masks"] * 3, "collect"]
    calls.clear()
    run(engine, constrained(None, max_tokens=3))
    assert calls == ["submit", "submit", "collect", "submit", "collect", "collect"]


def test_others_are_not_constrained(make: Make) -> None:
    plain = constrained(None, spell("Say anything."), max_tokens=20)
    alone = run(make(), plain)
    beside = run(make(), plain, constrained(following(PERSON)), constrained(matching("[ab]{30}"), max_tokens=3))
    assert beside.tokens[0, 0] == alone.tokens[0, 0]
    assert is_person(text_of(beside.tokens[1, 0]))
    assert beside.reasons[2, 0] is FinishReason.LENGTH
    assert re.fullmatch("[ab]{1,30}", text_of(beside.tokens[2, 0]))


def test_what_is_complete_at_its_last_token_is_not_cut(make: Make) -> None:
    found = run(make(), constrained(matching("[ab]"), max_tokens=1))
    assert found.reasons[0, 0] is FinishReason.STOP
    assert len(found.tokens[0, 0]) == 1


def test_a_grammar_may_end_where_more_could_follow_and_only_there(make: Make) -> None:
    requests = [constrained(matching("(ab)+"), seed=seed, max_tokens=100) for seed in range(30)]
    found = run(make(), *requests)
    ended = [key for key, reason in found.reasons.items() if reason is FinishReason.STOP]
    assert ended
    for key in ended:
        assert found.tokens[key][-1] == EOS
        assert re.fullmatch("(ab)+", text_of(found.tokens[key]))


def test_with_ignore_eos_a_grammar_goes_on_as_long_as_it_can(make: Make) -> None:
    found = run(make(), constrained(matching("(ab)+"), max_tokens=50, ignore_eos=True))
    assert found.reasons[0, 0] is FinishReason.LENGTH
    assert EOS not in found.tokens[0, 0]
    found = run(make(), constrained(matching("[ab]{5,9}"), ignore_eos=True))
    assert found.reasons[0, 0] is FinishReason.STOP
    assert len(text_of(found.tokens[0, 0])) == 9


def test_the_end_of_a_grammar_goes_before_min_tokens(make: Make) -> None:
    found = run(make(), constrained(matching("[ab]{3}"), min_tokens=40, max_tokens=60))
    assert found.reasons[0, 0] is FinishReason.STOP
    assert re.fullmatch("[ab]{3}", text_of(found.tokens[0, 0]))


def test_until_min_tokens_a_complete_grammar_goes_on(make: Make) -> None:
    found = run(make(), constrained(matching("[ab]*"), min_tokens=30, max_tokens=200))
    assert len(found.tokens[0, 0]) >= 30
    assert re.fullmatch("[ab]*", text_of(found.tokens[0, 0]))


def test_a_stop_token_ends_a_complete_grammar_or_cuts_where_the_grammar_has_it(make: Make) -> None:
    end = 1
    complete = run(make(), *(constrained(matching("[ab]*"), seed=seed, stop_token_ids=(end,)) for seed in range(20)))
    assert {complete.tokens[key][-1] for key in complete.tokens} == {end, EOS}
    stop = spell("b")[0]
    cut = run(make(), constrained(matching("a*(b|c)d{90}"), stop_token_ids=(stop,), max_tokens=90, logit_bias=()))
    if stop in cut.tokens[0, 0]:
        assert cut.last[0].stop_token_id == cut.tokens[0, 0][-1] == stop


def test_a_grammar_of_nothing_ends_before_it_begins(make: Make) -> None:
    found = run(make(), constrained(matching(""), n=3), constrained(following(PERSON)))
    assert [found.tokens[0, choice] for choice in range(3)] == [[], [], []]
    assert found.reasons[0, 0] is FinishReason.STOP
    assert is_person(text_of(found.tokens[1, 0]))


def test_preempted_sequences_go_on_in_their_grammars(make: Make) -> None:
    requests = [constrained(following({"type": "array", "minItems": 4, "items": PERSON}), seed=seed, max_tokens=100)
                for seed in range(5)]  # fmt: skip
    roomy = run(make(num_blocks=400), *requests)
    tight = run(make(num_blocks=62), *requests)
    assert sum(delta.usage.preemptions for delta in tight.last.values() if delta.usage)
    assert tight.tokens == roomy.tokens


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_another_worker_goes_on_in_the_grammar(make: Make, cut: int) -> None:
    request = constrained(following({"type": "array", "minItems": 2, "items": PERSON}), n=2, max_tokens=120)
    whole = run(make(), request)
    progress = tuple(ChoiceProgress(whole.tokens[0, choice][:cut]) for choice in range(2))
    resumed = run(make(), constrained(request.constraint, n=2, max_tokens=120, progress=progress))
    for choice in range(2):
        assert progress[choice].token_ids + resumed.tokens[0, choice] == whole.tokens[0, choice]
        assert resumed.reasons[0, choice] is whole.reasons[0, choice]


def test_what_was_complete_when_its_worker_was_lost_ends_at_the_next(make: Make) -> None:
    progress = (ChoiceProgress(spell("abc")), ChoiceProgress(spell("ab")))
    found = run(make(), constrained(matching("abc"), n=2, progress=progress))
    assert found.tokens[0, 0] == []
    assert text_of(found.tokens[0, 1]) == "c"
    assert found.reasons == {(0, 0): FinishReason.STOP, (0, 1): FinishReason.STOP}


def test_progress_that_the_grammar_does_not_allow_is_refused(make: Make) -> None:
    found = run(make(), constrained(matching("abc"), progress=(ChoiceProgress(spell("xyz")),)))
    assert isinstance(found.last[0].error, InvalidRequest)
    assert "progress" in found.last[0].error.message


def test_the_constraint_begins_after_the_thinking(make: Make) -> None:
    end = spell("!")
    marks = ReasoningMarks(end_token_ids=tuple(end), is_open=True)
    found = run(make(), *(constrained(following(PERSON), reasoning=marks, max_tokens=4000, seed=seed, prompt=[5])
                          for seed in range(2)))  # fmt: skip
    for tokens in found.tokens.values():
        if end[0] in tokens:
            assert EOS not in tokens[: tokens.index(end[0])]
            assert is_person(text_of(tokens[tokens.index(end[0]) + 1 :])) or len(tokens) > 200


def test_what_cannot_be_read_ends_with_an_error_and_others_go_on(make: Make) -> None:
    bad = [Constraint.of("guidance", b"start: nothing"), Constraint.of("nonsense", b"x"), following(PERSON)]
    found = run(make(), *map(constrained, bad))
    assert isinstance(found.last[0].error, InvalidRequest)
    assert "unknown name" in found.last[0].error.message
    assert isinstance(found.last[1].error, InvalidRequest)
    assert is_person(text_of(found.tokens[2, 0]))


def test_where_no_token_fits_the_request_fails_alone() -> None:
    """The vocabulary has no token for what must come next, which is the fault of that request only."""
    poor = Vocabulary((b"a", b"c", b"<end>"), frozenset([2]), (2,))
    grammars = Grammars(poor.size, lambda: poor)
    executor = FakeExecutor(poor.size, 4)
    executor.allocate(CacheSize(64))
    facts = EngineFacts(num_blocks=64, block_size=4, max_model_len=240, max_num_batched_tokens=64)
    engine = Engine(executor, engine_options(max_num_seqs=8), facts, grammars=grammars)
    found = run(engine, constrained(matching("ab"), [0]), constrained(matching("a{9}"), [0]))
    assert isinstance(found.last[0].error, InvalidRequest)
    assert "can no longer follow its constraint" in found.last[0].error.message
    assert found.tokens[1, 0] == [0] * 9
    engine.close()


def test_a_grammar_that_takes_the_time_of_others_ends_its_request(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "_MASK_SECONDS", 0.0)
    monkeypatch.setattr(constraints, "_MASK_SECONDS_A_TOKEN", 0.0)
    plain = constrained(None, max_tokens=5)
    found = run(make(), constrained(following(PERSON), n=2), plain)
    assert isinstance(found.last[0].error, InvalidRequest)
    assert "takes too much time" in found.last[0].error.message
    assert found.reasons[1, 0] is FinishReason.LENGTH


def test_a_failed_step_ends_its_own_and_the_next_goes_on(make: Make) -> None:
    steps: list[int] = []

    def fail(plan: StepPlan) -> None:
        steps.append(plan.step)
        if len(steps) == 3:
            raise RuntimeError("a step failed")

    engine = make(on_step=fail)
    assert run(engine, constrained(following(PERSON))).last[0].error is not None
    again = Collected()
    engine.add(7, constrained(following(PERSON)))
    while 7 not in again.last:
        again.take(engine.step())
    assert is_person(text_of(again.tokens[7, 0]))


def test_an_abort_while_the_grammar_is_read(make: Make) -> None:
    engine, found = make(), Collected()
    for key in (101, 102):
        engine.add(key, constrained(matching("[0-9]{7}x")))
    engine.abort(101)
    while 102 not in found.last:
        found.take(engine.step())
    assert found.reasons[101, 0] is FinishReason.ABORT
    assert re.fullmatch("[0-9]{7}x", text_of(found.tokens[102, 0]))


def test_a_stop_of_one_choice_while_the_grammar_is_read(make: Make) -> None:
    engine, found = make(), Collected()
    engine.add(103, constrained(matching("[0-9]{6}y"), n=3))
    engine.stop(103, 0, 0)
    while 103 not in found.last:
        found.take(engine.step())
    assert found.tokens[103, 0] == []
    assert [bool(re.fullmatch("[0-9]{6}y", text_of(found.tokens[103, choice]))) for choice in (1, 2)] == [True, True]


def test_followers_are_freed_with_their_sequences(make: Make) -> None:
    engine = make()
    live = []
    engine.add(0, constrained(matching("a{50}"), n=2, max_tokens=5))
    live += engine._requests.find(0).sequences  # type: ignore[union-attr]
    found = Collected()
    while 0 not in found.last:
        found.take(engine.step())
    assert [sequence.follower for sequence in live] == [None, None]


def test_an_engine_without_a_vocabulary_refuses() -> None:
    executor = FakeExecutor(VOCABULARY_SIZE, 4)
    executor.allocate(CacheSize(64))
    facts = EngineFacts(num_blocks=64, block_size=4, max_model_len=240, max_num_batched_tokens=64)
    found = run(Engine(executor, engine_options(max_num_seqs=8), facts), constrained(following(PERSON)))
    assert isinstance(found.last[0].error, FailedPrecondition)
    assert "--tokenizer" in found.last[0].error.message


def test_a_grammar_that_takes_too_long_ends_its_request() -> None:
    now, over = [0.0], threading.Event()
    grammars = Grammars(VOCABULARY_SIZE, lambda: over.wait(SECONDS), lambda: now[0])  # type: ignore[arg-type,return-value]
    executor = FakeExecutor(VOCABULARY_SIZE, 4)
    executor.allocate(CacheSize(64))
    facts = EngineFacts(num_blocks=64, block_size=4, max_model_len=240, max_num_batched_tokens=64)
    engine = Engine(executor, engine_options(max_num_seqs=8), facts, lambda: now[0], grammars=grammars)
    engine.add(0, constrained(following(PERSON), timeout_seconds=5.0), arrival_time=0.0)
    assert not engine.has_work
    now[0] = 6.0
    assert engine.has_work
    (delta,) = engine.step()
    assert isinstance(delta.error, DeadlineExceeded)
    over.set()
    engine.close()


def test_what_ends_by_its_grammar_is_told_from_what_a_token_ends(make: Make) -> None:
    found = run(make(), *(constrained(matching("a{0,3}"), seed=seed, max_tokens=9) for seed in range(12)))
    ended = {key: found.last[key].ended_by_constraint for key in range(12)}
    assert ended == {key: found.tokens[key, 0][-1] != EOS for key in range(12)}
    assert set(ended.values()) == {True, False}


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"allowed_token_ids": (5,)}, "allowed_token_ids"),
        ({"bad_words": ((5,),)}, "bad_words"),
        ({"min_tokens": 3, "stop_token_ids": (5,)}, "min_tokens"),
        ({"min_tokens": 3}, ""),
    ],
)
def test_a_request_that_forbids_what_has_to_come_is_told_so(make: Make, fields: dict[str, Any], parameter: str) -> None:
    engine = make(
        failed_slots=lambda plan: {each.slot: OVERFLOW for each in plan.scheduled if each.num_sampled_positions}
    )
    error = run(engine, constrained(matching("[ab]+"), **fields)).last[0].error
    assert isinstance(error, InvalidRequest if parameter else Internal)
    assert error.parameter == parameter
    engine = make(
        failed_slots=lambda plan: {each.slot: "it broke" for each in plan.scheduled if each.num_sampled_positions}
    )
    error = run(engine, constrained(matching("[ab]+"), **fields)).last[0].error
    assert isinstance(error, Internal)
    assert "it broke" in error.message
