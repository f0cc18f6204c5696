"""Sequences of a model with recurrent layers begin with saved states, and with the right ones."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import pytest

from engine_svc.core.engine import Engine, EngineFacts
from engine_svc.plan import CacheSize
from engine_svc.requests.request import GenerationRequest
from quire.sampling import SamplingParameters
from tests.support.engine_options import engine_options
from tests.support.fake_executor import FakeExecutor, expected_tokens
from tests.support.plans import sampling_plan
from tests.support.rank_drafter import RankDrafter
from tests.support.remote_connector import Fare, Remote, RemoteConnector, list_store
from tests.support.run_engine import run_requests

VOCABULARY, BLOCK, LENGTH = 50, 4, 96


def make_engine(
    num_snapshots: int,
    every: int = 2,
    drafts: int = 0,
    remote: Remote | None = None,
    clock: Callable[[], float] = time.monotonic,
    **given: int,
) -> Engine:
    """An engine whose executor checks that each sequence's state is that of its computed tokens.

    Args:
        drafts: drafted tokens that each step should verify, half of them right.
        remote: keeps blocks and states elsewhere.
    """
    sizes = {"num_blocks": 200, "slots": 8, "budget": 64, "in_flight": 1, "stages": 1, "host": 0} | given
    executor = FakeExecutor(
        VOCABULARY, BLOCK, LENGTH, verify=True, max_in_flight=sizes["in_flight"] - 1 + sizes["stages"],
        keeps_states=True, right_guesses=drafts // 2,
        make_store=list_store(remote, [(9, 9)] * BLOCK) if remote else None,
    )  # fmt: skip
    executor.allocate(CacheSize(sizes["num_blocks"], 10 * sizes["host"], num_snapshots, sizes["host"]))
    facts = EngineFacts(
        num_blocks=sizes["num_blocks"], block_size=BLOCK, max_model_len=LENGTH, num_stages=sizes["stages"],
        max_num_batched_tokens=sizes["budget"], has_states=True, num_snapshots=num_snapshots,
        snapshot_tokens=every * BLOCK, num_host_blocks=10 * sizes["host"], num_host_snapshots=sizes["host"],
    )  # fmt: skip
    return Engine(
        executor, engine_options(max_num_seqs=sizes["slots"]), facts, clock,
        drafter=RankDrafter(drafts) if drafts else None, connectors=[RemoteConnector(remote)] if remote else [],
    )  # fmt: skip


def request(prompt: list[int], max_tokens: int = 1, n: int = 1) -> GenerationRequest:
    return GenerationRequest("r", prompt, SamplingParameters(temperature=0, max_tokens=max_tokens, n=n))


@pytest.mark.parametrize(
    "given",
    [
        {}, {"num_snapshots": 0}, {"num_snapshots": 2, "in_flight": 2}, {"budget": 11, "slots": 3, "every": 1},
        {"num_blocks": 40, "in_flight": 2, "every": 1}, {"num_blocks": 30, "budget": 23, "stages": 2, "every": 3},
        {"num_snapshots": 5, "stages": 3, "slots": 12}, {"drafts": 4}, {"drafts": 6, "num_snapshots": 2, "every": 3},
        {"drafts": 3, "num_blocks": 40, "every": 1}, {"drafts": 4, "stages": 2, "budget": 23},
        {"num_snapshots": 3, "num_blocks": 40, "host": 20}, {"num_snapshots": 1, "host": 5, "slots": 3, "in_flight": 2},
        {"num_snapshots": 4, "num_blocks": 30, "host": 3, "stages": 3, "every": 1}, {"host": 30, "drafts": 4},
    ],
    ids=str,
)  # fmt: skip
def test_states_are_those_of_the_computed_tokens(given: dict[str, int]) -> None:
    engine = make_engine(**{"num_snapshots": 12, **given})
    converse(engine)
    counters = engine.load().counters
    hits = counters.prefix_cache_hits + counters.external_cache_hits
    assert (hits > 800) == (given.get("num_snapshots") != 0)
    assert (counters.preemptions > 0) == ("num_blocks" in given)
    assert (counters.external_cache_hits > 100) == ("host" in given)


def converse(engine: Engine) -> None:
    """Conversations go on, prompts share beginnings, sequences are preempted; the fake model checks every state."""
    draw = random.Random(7)
    beginnings = [[draw.randrange(VOCABULARY) for _ in range(draw.randrange(5, 40))] for _ in range(3)]
    conversations = [list(draw.choice(beginnings)) for _ in range(12)]
    plan = sampling_plan(temperature=0)
    for _ in range(25):
        chosen = draw.sample(range(len(conversations)), 6)
        for index in chosen:
            conversations[index] += [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 12))]
            if len(conversations[index]) > 60:
                conversations[index] = list(draw.choice(beginnings))
        asked = [request(list(conversations[index]), draw.randrange(1, 25), draw.randrange(1, 3)) for index in chosen]
        for index, one, outputs in zip(chosen, asked, run_requests(engine, asked), strict=True):
            expected = expected_tokens(one.prompt_token_ids, one.sampling.max_tokens or 0, VOCABULARY, plan)
            assert [output.token_ids for output in outputs] == [expected] * one.sampling.n
            conversations[index] += expected
        engine.check()


@pytest.mark.parametrize(
    ("load", "save", "given"),
    [
        (lambda key: Fare(key % 5), lambda key: Fare(), {"num_snapshots": 5}),
        (lambda key: Fare(key % 5, most=key % 9), lambda key: Fare(), {"num_blocks": 40, "slots": 3, "host": 6}),
        (lambda key: Fare(), lambda key: Fare(key % 5, most=key % 2), {"num_snapshots": 2, "in_flight": 2}),
        (lambda key: Fare(None, lingers=key % 3), lambda key: Fare(3), {"num_snapshots": 3, "stages": 2}),
    ],
    ids=["late", "in part", "few are saved", "never"],
)
def test_states_that_arrive_later(
    load: Callable[[int], Fare], save: Callable[[int], Fare], given: dict[str, int]
) -> None:
    """Two workers keep blocks and states in the same place; few of the first one's fit its device."""
    now, remote = itertools.count(), Remote(load=load, save=save, wait_seconds=20)
    for _ in range(2):
        engine = make_engine(**{"num_snapshots": 12, **given}, remote=remote, clock=lambda: float(next(now)))
        converse(engine)
    assert (engine.load().counters.external_cache_hits > 100) == (load(1).steps is not None)
    assert engine.load().used_kv_blocks == 0


def test_small_steps_are_not_made_for_states_in_the_middle() -> None:
    engine, plans = make_engine(8, budget=7), []
    executor = engine._executor
    assert isinstance(executor, FakeExecutor)
    executor.on_step = plans.append
    run_requests(engine, [request(list(range(40)))])
    assert [plan.num_tokens for plan in plans] == [7, 7, 7, 7, 4, 7, 1]


def test_prompts_are_cut_where_states_are_saved() -> None:
    """At the last multiple, and once more where a prompt parts from a cached one; others use the rest of the budget."""
    engine, whole = make_engine(8), list(range(40))
    plans = []
    executor = engine._executor
    assert isinstance(executor, FakeExecutor)
    executor.on_step = plans.append
    run_requests(engine, [request(whole[:30]), request([9, 8, 7])])
    assert [[each.num_new_tokens for each in plan.scheduled] for plan in plans] == [[24, 3], [6]]
    plans.clear()
    run_requests(engine, [request([*whole[:21], 49, *range(12)])])
    assert [[each.num_new_tokens for each in plan.scheduled] for plan in plans] == [[16], [16], [2]]
    plans.clear()
    run_requests(engine, [request([*whole[:18], 48, *range(12)])])
    assert [each.num_computed_tokens for each in plans[0].new_sequences] == [16]


def test_no_draft_passes_a_place_where_states_are_saved() -> None:
    """With every draft right, an answer's states are saved as without drafts: the next turn begins with the last."""
    engine, plans = make_engine(8, drafts=6), []
    executor = engine._executor
    assert isinstance(executor, FakeExecutor)
    executor.right_guesses, executor.on_step = 6, plans.append
    ((output,),) = run_requests(engine, [request(list(range(21)), 25)])
    drafted = [len(each.draft_token_ids) for plan in plans for each in plan.scheduled]
    assert max(drafted) == 6
    assert all(
        (each.num_computed_tokens + 1) // 8 == (each.num_computed_tokens + each.num_new_tokens) // 8
        for plan in plans for each in plan.scheduled if each.draft_token_ids
    )  # fmt: skip
    plans.clear()
    run_requests(engine, [request([*range(21), *output.token_ids, 7])])
    assert [each.num_computed_tokens for each in plans[0].new_sequences] == [40]
