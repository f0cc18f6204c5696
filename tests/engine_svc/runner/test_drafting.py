"""Guesses of a rank's draft model. With the target itself as the draft, right guesses prove that its cache is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_svc.parallel.group import ParallelGroups
from engine_svc.plan import (
    BlockTransfer,
    CacheSize,
    NewSequence,
    SamplingPlan,
    ScheduledSequence,
    StepPlan,
    StepResult,
    Transfers,
)
from engine_svc.runner.runner import Runner
from quire.options.model import ModelOptions
from quire.sampling import SamplingParameters
from tests.support.engine_options import engine_options
from tests.support.recorder import Recorder, record_prompts
from tests.support.run_engine import random_prompts
from tests.support.tiny_models import make_model

SEEDED = SamplingPlan(SamplingParameters(temperature=1.0, top_k=40), seed=11)
GREEDY = SamplingPlan(SamplingParameters(temperature=0.0))
PROMPT = random_prompts(40)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"), "llama", num_hidden_layers=2)


@contextmanager
def running(folder: Path, draft: Path | None = None, host_blocks: int = 0, **options: Any) -> Iterator[Runner]:
    config = {"method": "draft_model", "model": str(draft or folder)}
    chosen = engine_options(**{"dtype": "float32", "use_tqdm_on_load": False, "speculative_config": config} | options)
    runner = Runner(ModelOptions(model=str(folder)), chosen, ParallelGroups(), torch.device("cpu"))
    runner.allocate(CacheSize(32, host_blocks))
    yield runner


class Driver:
    """Decodes one sequence by hand, token by token.

    Args:
        saves: after how many tokens states of recurrent layers are saved, for one that finds so many tokens.
    """

    def __init__(
        self, runner: Runner, prompt: Sequence[int], slot: int = 0, sampling: SamplingPlan = GREEDY, saves: int = 0
    ) -> None:
        self.runner, self.slot, self.sampling, self.saves = runner, slot, sampling, saves
        self.token_ids = list(prompt)
        self.num_prompt_tokens = self.computed = len(prompt)

    def start(
        self, blocks: list[int], found: int = 0, wanted: int = 0, transfers: Transfers | None = None
    ) -> dict[int, list[int]]:
        """Computes the tokens that are not found in the cache; returns the guesses."""
        groups = range(len(self.runner.spec().windows))  # of layers, each of which has its own blocks
        of_groups = [[block + 10 * group for block in blocks] for group in groups]
        new = NewSequence(
            self.slot, self.token_ids, self.num_prompt_tokens, found, of_groups, self.sampling,
            snapshot=0 if found and found == self.saves else -1,
        )  # fmt: skip
        return self._step(found, len(self.token_ids) - found, wanted, [new], transfers)

    def go_on(self, wanted: int = 0) -> dict[int, list[int]]:
        return self._step(len(self.token_ids) - 1, 1, wanted, [], None)

    def _step(
        self, computed: int, count: int, wanted: int, new: list[NewSequence], transfers: Transfers | None
    ) -> dict[int, list[int]]:
        scheduled = ScheduledSequence(self.slot, computed, count, 1, [], num_wanted_drafts=wanted)
        snapshots = {self.slot: 0} if computed + count == self.saves else {}
        plan = StepPlan(0, new, [scheduled], transfers or Transfers(), snapshots=snapshots)
        result = self.runner.step(plan)
        self.token_ids += result.sampled_token_ids[0]
        self.result: StepResult = result
        return result.draft_token_ids

    def check(self, guessed: dict[int, list[int]], count: int) -> None:
        """Continues without drafting, and compares the guesses with the tokens."""
        known = len(self.token_ids)
        while len(self.token_ids) < known + count:
            assert self.go_on() == {}
        assert guessed == {self.slot: self.token_ids[known:]}


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_target_as_its_own_draft_is_always_right(folder: Path, sampling: SamplingPlan) -> None:
    with running(folder) as runner:
        driver = Driver(runner, PROMPT, 3, sampling)
        driver.check(driver.start([5, 9, 2, 30, 11], wanted=5), 5)
        driver.check(driver.go_on(wanted=4), 4)  # it has caught up with the tokens that it missed


@pytest.mark.slow
def test_a_draft_is_replayed_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs replay the draft's guesses, and its catching up after a step of several tokens, but not a prompt."""
    record_prompts(monkeypatch)
    monkeypatch.setattr(Runner, "_run_prompt", lambda *_: None)  # a warm-up; the interpreter compiles nothing
    recorder = Recorder()
    with running(folder, attention_backend="triton", max_num_seqs=2) as runner:
        shapes = runner.make_graphs(recorder, 4)
        assert shapes == recorder.recorded == 2 * 2 * 2  # of the target and the draft, each for 1 and 4 tokens
        driver = Driver(runner, PROMPT, 1)
        guessed = driver.start([5, 9, 2, 30, 11], wanted=5)
        assert recorder.replays == 4  # all guesses but the first, which comes with the prompt
        driver.check(guessed, 5)
        replays = recorder.replays
        guessed = driver.go_on(wanted=4)  # six tokens to catch up with, more than any graph has
        assert recorder.replays == replays + 1 + 3
        driver.check(guessed, 4)
        driver.go_on(wanted=1)
        driver.go_on()
        replays = recorder.replays
        guessed = driver.go_on(wanted=2)  # two tokens to catch up with
        assert recorder.replays == replays + 1 + 1 + 1
        driver.check(guessed, 2)
        assert runner.make_graphs(Recorder(), 4, most=2) == shapes


def test_a_prompt_in_chunks(folder: Path) -> None:
    with running(folder) as runner:
        new = NewSequence(0, PROMPT, 40, 0, [[1, 2, 3, 4]], GREEDY)
        for start, count, new_sequences in ((0, 25, [new]), (25, 10, [])):
            scheduled = ScheduledSequence(0, start, count, 0, [], num_wanted_drafts=3)
            result = runner.step(StepPlan(0, new_sequences, [scheduled]))
            assert result.draft_token_ids == {}
        driver = Driver(runner, PROMPT)
        driver.check(driver._step(35, 5, 3, [], None), 3)


def test_what_was_computed_of_wrong_guesses_is_forgotten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(folder) as runner:
        driver = Driver(runner, PROMPT)
        with monkeypatch.context() as wrong:
            assert runner._answers
            sampler = runner._answers._sampler
            wrong.setattr(sampler, "guess", lambda _logits, slots, _lengths: torch.full((len(slots),), 7))
            assert driver.start([5, 9, 2, 30, 11], wanted=5) == {0: [7] * 5}
        driver.check(driver.go_on(wanted=5), 5)


def test_room_in_blocks_bounds_what_is_guessed(folder: Path) -> None:
    with running(folder) as runner:
        driver = Driver(runner, PROMPT[:30])
        assert len(driver.start([4, 5], wanted=9)[0]) == 2  # room for 30 + 1 tokens, and one guess that is computed


def test_a_token_without_a_block_waits_for_it(folder: Path) -> None:
    """The block table's entry for it may be another sequence's block."""
    with running(folder) as runner:
        other = Driver(runner, PROMPT[:15], 1)
        guessed = other.start([0, 1], wanted=3)
        driver = Driver(runner, PROMPT[:32])
        assert driver.start([4, 5], wanted=9) == {}
        other.check(guessed, 3)
        other.check(other.go_on(wanted=3), 3)


def test_a_draft_of_fewer_positions_stops_there(folder: Path, tmp_path: Path) -> None:
    short = make_model(tmp_path, "llama", max_position_embeddings=45)
    with running(folder, short) as runner:
        driver = Driver(runner, PROMPT)
        assert len(driver.start([5, 9, 2, 30, 11], wanted=9)[0]) == 5
        while len(driver.token_ids) < 46:
            guessed = driver.go_on(wanted=9)
        assert guessed == {}


def test_of_a_prompt_that_is_found_the_draft_computes_what_it_lacks(folder: Path) -> None:
    with running(folder) as runner:
        Driver(runner, PROMPT[:20], 0).start([5, 9], wanted=2)
        Driver(runner, PROMPT, 1).start([5, 10, 11, 12], found=16)  # without the draft
        driver = Driver(runner, PROMPT, 2)
        drafting = runner._drafting
        assert drafting
        guessed = driver.start([5, 10, 13, 14], found=32, wanted=4)
        assert drafting._complete[[5, 10, 11, 13]].tolist() == [True, True, False, False]
        driver.check(guessed, 4)
        assert drafting._computed[:3].tolist() == [21, 16, 41]


def test_blocks_of_others_are_not_taken_for_computed(folder: Path) -> None:
    with running(folder) as runner:
        Driver(runner, PROMPT, 0).start([5, 9, 3], wanted=2)
        Driver(runner, PROMPT[::-1], 1).start([9, 5, 7])  # never drafted
        driver = Driver(runner, PROMPT[::-1], 2)
        driver.check(driver.start([9, 5, 8, 6], found=32, wanted=4), 4)


def test_blocks_come_back_from_the_host_with_what_the_draft_had_in_them(folder: Path) -> None:
    with running(folder, host_blocks=8) as runner:
        Driver(runner, PROMPT, 0).start([5, 9, 3], wanted=2)
        saves = Transfers(saves=[BlockTransfer([5, 9], [1, 6])])
        other = Driver(runner, PROMPT[::-1], 1)
        other.start([9, 5, 7], wanted=2, transfers=saves)
        driver = Driver(runner, PROMPT, 2)
        loads = Transfers(loads=[BlockTransfer([20, 21], [1, 6])])
        guessed = driver.start([20, 21, 22, 23], found=32, wanted=4, transfers=loads)
        assert runner._drafting
        assert runner._drafting._complete[[20, 21]].all()
        driver.check(guessed, 4)


def test_catching_up_is_bounded_by_the_budget_of_a_step(folder: Path) -> None:
    with running(folder, max_num_batched_tokens=16) as runner:
        drafting = runner._drafting
        assert drafting
        driver = Driver(runner, PROMPT)
        driver.start([5, 9, 2, 30, 11])
        for computed in (16, 32):
            assert driver.go_on(wanted=3) == {}
            assert drafting._computed[0] == computed
        driver.check(driver.go_on(wanted=3), 3)


def test_sequences_that_want_different_numbers(folder: Path) -> None:
    with running(folder) as runner:
        drivers = [Driver(runner, prompt, slot) for slot, prompt in enumerate(random_prompts(20, 9, 33))]
        for driver, blocks in zip(drivers, ([1, 2, 3], [4, 5, 6], [7, 8, 9]), strict=True):
            driver.start(blocks)
        scheduled = [
            ScheduledSequence(driver.slot, len(driver.token_ids) - 1, 1, 1, [], num_wanted_drafts=wanted)
            for driver, wanted in zip(drivers, (2, 5, 3), strict=True)
        ]
        result = runner.step(StepPlan(0, [], scheduled))
        for driver, (token_id,), wanted in zip(drivers, result.sampled_token_ids, (2, 5, 3), strict=True):
            driver.token_ids.append(token_id)
            driver.check({driver.slot: result.draft_token_ids[driver.slot]}, wanted)


def test_a_draft_that_crashes_is_left_and_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(folder) as runner:
        driver = Driver(runner, PROMPT)
        driver.start([5, 9, 2, 30, 11], wanted=2)
        known = len(driver.token_ids)
        assert runner._drafting
        monkeypatch.setattr(runner._drafting, "_go_on", lambda *_: 1 / 0)
        assert driver.go_on(wanted=2) == {}
        assert driver.result.draft_failure == "ZeroDivisionError: division by zero"
        assert len(driver.token_ids) == known + 1
        assert driver.go_on(wanted=2) == {}
        assert driver.result.draft_failure == ""


def test_memory_is_counted(folder: Path) -> None:
    with running(folder) as runner:
        spec = runner.spec()
        assert spec.draft_bytes_per_block * 2 == spec.bytes_per_block
