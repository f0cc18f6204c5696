"""The contract of every executor, including the fake one, driven by plans like those of the control side."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine_svc.executor.base import EXECUTORS, Executor, ExecutorDead, create_executor
from engine_svc.plan import (
    BlockTransfer,
    CacheSize,
    KvCacheSpec,
    NewSequence,
    ScheduledSequence,
    StepPlan,
    StepResult,
    Transfers,
)
from engine_svc.upkeep import CheckWeights, ReleaseMemory, RestoreCache, RestoreWeights, StartProfile, StopProfile
from quire.errors import StartupError
from quire.options.model import ModelOptions
from quire.options.parallel import ParallelOptions
from tests.support.engine_options import engine_options
from tests.support.fake_executor import FakeExecutor, expected_tokens
from tests.support.plans import masks, sampling_plan
from tests.support.run_engine import random_prompts
from tests.support.tiny_models import VOCAB_SIZE, make_model, reference_logprobs, reference_tokens

SLOTS, MAX_MODEL_LEN, BLOCK_SIZE, HOST_BLOCKS = 4, 256, 16, 8
BLOCKS_EACH = MAX_MODEL_LEN // BLOCK_SIZE
GREEDY: Mapping[str, Any] = {"temperature": 0.0}
# Not allowed in a request: the runner cannot follow it.
BROKEN: Mapping[str, Any] = GREEDY | {"logit_bias": ((10**6, 1.0),)}
PROMPTS = random_prompts(7, 40, 16, 1, seed=3)

# A new executor needs an entry. Executors that start `mp`-like ranks elsewhere have their own tests, which are too slow
# to hold up these: see tests/engine_svc/executor.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "uni": {},
    "mp": {"distributed_executor_backend": "mp"},
    "mp of two ranks": {"tensor_parallel_size": 2},
    "mp of two stages": {"pipeline_parallel_size": 2},
}
NAMES = [pytest.param(name, marks=pytest.mark.slow) if "of two" in name else name for name in OPTIONS]
every = pytest.mark.parametrize("subject", [*NAMES, "fake"], indirect=True)
real = pytest.mark.parametrize("subject", NAMES, indirect=True)


@dataclass
class Subject:
    """An executor with a loaded model, and the single thread that calls it. Each slot has its own blocks."""

    executor: Executor
    spec: KvCacheSpec
    expected: Callable[[list[int], int], list[int]]  # the likeliest tokens after a prompt
    processes: Sequence[int] = ()  # of its ranks, in their order
    steps: Iterator[int] = field(default_factory=lambda: iter(range(1, 10**6)))

    def step(self, *scheduled: ScheduledSequence, new: Sequence[NewSequence] = (), **copies: Any) -> StepResult:
        return run(self.executor, StepPlan(next(self.steps), list(new), list(scheduled), **copies))

    def generate(self, slot: int, prompt: list[int], count: int) -> list[int]:
        """Generates with no other sequence in the batch."""
        found = sampled(self.step(part(slot, 0, len(prompt)), new=[begin(slot, prompt)]))[slot]
        for length in range(len(prompt), len(prompt) + count - 1):
            found += sampled(self.step(part(slot, length, 1)))[slot]
        return found


def run(executor: Executor, plan: StepPlan) -> StepResult:
    executor.submit(plan)
    return executor.collect()


def begin(slot: int, prompt: list[int], computed: int = 0, **sampling: Any) -> NewSequence:
    blocks = list(range(slot * BLOCKS_EACH, (slot + 1) * BLOCKS_EACH))
    return NewSequence(slot, prompt, len(prompt), computed, [blocks], sampling_plan(**(GREEDY | sampling)))


def part(slot: int, computed: int, count: int, samples: bool = True) -> ScheduledSequence:
    return ScheduledSequence(slot, computed, count, int(samples), [])


def sampled(result: StepResult) -> dict[int, list[int]]:
    return dict(zip(result.sampled_slots, result.sampled_token_ids, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"), "llama-untied")


@pytest.fixture(scope="module")
def answers(folder: Path) -> Mapping[tuple[int, ...], list[int]]:
    """Maps each prompt to the first tokens of Transformers' answer."""
    found = reference_tokens(folder, PROMPTS, 6)
    return {tuple(prompt): tokens for prompt, tokens in zip(PROMPTS, found, strict=True)}


@contextlib.contextmanager
def loaded(name: str, folder: Path) -> Iterator[tuple[Executor, KvCacheSpec]]:
    """Yields an executor whose cache is allocated; checks that closing it leaves no processes behind."""
    options = engine_options(
        dtype="float32", max_num_seqs=SLOTS, block_size=BLOCK_SIZE, use_tqdm_on_load=False, cpu_threads=1,
        **OPTIONS[name],
    )  # fmt: skip
    before = children()
    executor = create_executor(options.parallel)
    try:
        spec = executor.load(ModelOptions(model=str(folder)), options)
        executor.allocate(CacheSize(SLOTS * BLOCKS_EACH, HOST_BLOCKS))
        yield executor, spec
    finally:
        executor.close()
        executor.close()
        assert children() <= before  # processes of other tests may end meanwhile


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (None, "MultiprocExecutor"), ({"hidden_size": 64, "num_experts": 0}, "UniprocExecutor"),
        ({"num_local_experts": 8}, "MultiprocExecutor"), ({"text_config": {"num_experts": 8}}, "MultiprocExecutor"),
    ],
)  # fmt: skip
def test_data_ranks_that_may_share_experts_are_processes(config: dict[str, Any] | None, name: str) -> None:
    assert type(create_executor(ParallelOptions(data_parallel_size=2), config=config)).__name__ == name
    assert type(create_executor(ParallelOptions(), config=config)).__name__ == "UniprocExecutor"


def children() -> set[int]:
    """Returns the child processes of this process that have not been waited for."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(number) for path in lists for number in path.read_text().split()}


@pytest.fixture(scope="module")
def subject(
    request: pytest.FixtureRequest, folder: Path, answers: Mapping[tuple[int, ...], list[int]]
) -> Iterator[Subject]:
    if request.param == "fake":
        yield fake()
        return
    before = children()
    with loaded(request.param, folder) as (executor, spec):
        processes = sorted(children() - before)
        yield Subject(executor, spec, lambda prompt, count: answers[tuple(prompt)][:count], processes)


def fake() -> Subject:
    executor = FakeExecutor(
        VOCAB_SIZE, BLOCK_SIZE, MAX_MODEL_LEN, max_in_flight=2,
        failed_slots=lambda plan: {
            new.slot: "cannot be followed" for new in plan.new_sequences if new.sampling.parameters.logit_bias
        },
    )  # fmt: skip
    executor.allocate(CacheSize(SLOTS * BLOCKS_EACH, HOST_BLOCKS))
    plan = sampling_plan(**GREEDY)
    return Subject(executor, executor.spec, lambda prompt, count: expected_tokens(prompt, count, VOCAB_SIZE, plan))


def test_every_executor_is_tested() -> None:
    chosen = {type(create_executor(engine_options(**options).parallel)).__name__ for options in OPTIONS.values()}
    elsewhere = {"RayExecutor", "ExternalExecutor"}
    assert chosen | elsewhere == {entry.partition(":")[2] for entry in EXECUTORS.values()}


@every
def test_loading_tells_what_the_control_side_must_know(subject: Subject) -> None:
    spec = subject.spec
    assert (spec.vocab_size, spec.max_model_len, spec.block_size) == (VOCAB_SIZE, MAX_MODEL_LEN, BLOCK_SIZE)
    assert (spec.dtype, spec.device, spec.windows) == ("float32", "cpu", (None,))
    assert spec.max_num_batched_tokens >= MAX_MODEL_LEN
    assert spec.bytes_per_block > 0
    assert spec.available_bytes > 100 * spec.bytes_per_block


@every
def test_a_sequence_alone(subject: Subject) -> None:
    for prompt in PROMPTS:
        assert subject.generate(0, prompt, 6) == subject.expected(prompt, 6)


@every
def test_a_prompt_in_parts_samples_at_its_end(subject: Subject) -> None:
    prompt = PROMPTS[1]
    for first in (1, 15, 16, 17, 39):
        nothing = subject.step(part(1, 0, first, samples=False), new=[begin(1, prompt)])
        assert (nothing.sampled_slots, nothing.failed_slots) == ([], {})
        assert sampled(subject.step(part(1, first, 40 - first)))[1] == subject.expected(prompt, 1)


@every
def test_sequences_come_and_go_between_steps(subject: Subject) -> None:
    """Results are in batch order and only of sequences that sample, whatever else is in the batch."""
    expected = {slot: subject.expected(prompt, 4) for slot, prompt in enumerate(PROMPTS)}
    first = subject.step(
        part(2, 0, 16), part(0, 0, 7), part(1, 0, 30, samples=False),
        new=[begin(slot, PROMPTS[slot]) for slot in (0, 1, 2)],
    )  # fmt: skip
    assert first.sampled_slots == [2, 0]
    second = subject.step(part(1, 30, 10), part(3, 0, 1), part(2, 16, 1), new=[begin(3, PROMPTS[3])])
    assert second.sampled_slots == [1, 3, 2]
    third = subject.step(part(0, 7, 1), part(1, 40, 1), part(2, 17, 1), part(3, 1, 1))
    found = {
        slot: [token for step in (first, second, third) for token in sampled(step).get(slot, [])] for slot in expected
    }
    assert found == {slot: expected[slot][: len(tokens)] for slot, tokens in found.items()}
    assert [len(tokens) for tokens in found.values()] == [2, 2, 3, 2]
    assert first.execute_milliseconds >= first.forward_milliseconds > 0


@every
def test_an_aborted_sequence_leaves_its_slot_and_blocks_to_the_next(subject: Subject) -> None:
    """The control side does not announce an abort: a new sequence takes the slot mid-prompt or mid-answer."""
    subject.step(part(0, 0, 20, samples=False), new=[begin(0, PROMPTS[1], frequency_penalty=2.0, prompt_logprobs=1)])
    assert subject.generate(0, PROMPTS[0], 3) == subject.expected(PROMPTS[0], 3)
    subject.step(part(0, 0, 16), part(1, 0, 7), new=[begin(0, PROMPTS[2]), begin(1, PROMPTS[0])])
    result = subject.step(part(1, 7, 1), part(0, 0, 1), new=[begin(0, PROMPTS[3])])
    assert sampled(result) == {1: subject.expected(PROMPTS[0], 2)[1:], 0: subject.expected(PROMPTS[3], 1)}


@every
def test_a_sequence_that_cannot_be_sampled_fails_alone(subject: Subject) -> None:
    new = [begin(slot, PROMPTS[slot], **(BROKEN if slot == 1 else {})) for slot in range(3)]
    result = subject.step(part(0, 0, 7), part(1, 0, 40), part(2, 0, 16), new=new)
    assert list(result.failed_slots) == [1]
    assert result.failed_slots[1]
    assert sampled(result) == {slot: subject.expected(PROMPTS[slot], 1) for slot in (0, 2)}
    after = subject.step(part(0, 7, 1), part(1, 0, 40), part(2, 16, 1), new=[begin(1, PROMPTS[1])])
    assert after.failed_slots == {}
    assert sampled(after) == {
        0: subject.expected(PROMPTS[0], 2)[1:],
        1: subject.expected(PROMPTS[1], 1),
        2: subject.expected(PROMPTS[2], 2)[1:],
    }


@every
def test_steps_are_submitted_before_the_last_ones_tokens_are_known(subject: Subject) -> None:
    prompt, ahead, count = PROMPTS[0], subject.executor.max_in_flight, 6
    plans = [(part(0, 0, 7), [begin(0, prompt)]), *((part(0, 7 + number, 1), []) for number in range(count - 1))]
    found: list[int] = []
    for number, (scheduled, new) in enumerate(plans):
        subject.executor.submit(StepPlan(next(subject.steps), new, [scheduled]))
        if number >= ahead - 1:
            found += sampled(subject.executor.collect())[0]
    for _ in range(ahead - 1):
        found += sampled(subject.executor.collect())[0]
    assert found == subject.expected(prompt, count)


@every
def test_a_step_that_awaits_masks_samples_by_them(subject: Subject) -> None:
    """Masks apply to their own sequences: one follows a grammar, one does not, one ended before its mask was made."""
    plain = subject.generate(0, PROMPTS[0], 3)
    size = subject.spec.vocab_size
    new = [begin(0, PROMPTS[0]), begin(1, PROMPTS[1], follows_grammar=True), begin(2, PROMPTS[2], follows_grammar=True)]
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    computed, lengths = [0, 0, 0], [7, 40, 16]
    for allowed in ({9}, {3, 4}, {size - 1}):
        scheduled = [part(slot, computed[slot], lengths[slot] - computed[slot]) for slot in range(3)]
        subject.executor.submit(StepPlan(next(subject.steps), new, scheduled, awaits_masks=True))
        subject.executor.send_masks(masks(size, {1: allowed}))
        for slot, run_ in sampled(subject.executor.collect()).items():
            found[slot] += run_
        assert found[1][-1] in allowed
        new, computed, lengths = [], lengths, [length + 1 for length in lengths]
    assert found[0] == plain
    assert len(found[2]) == 3


@every
def test_a_step_begins_while_the_one_before_waits_for_nobody(subject: Subject) -> None:
    """Masks arrive after the tokens of the step before, which are collected while the next step runs."""
    if subject.executor.max_in_flight < 2:
        return
    size, found = subject.spec.vocab_size, []
    new = [begin(0, PROMPTS[0], follows_grammar=True)]
    subject.executor.submit(StepPlan(next(subject.steps), new, [part(0, 0, 7)], awaits_masks=True))
    subject.executor.send_masks(masks(size, {0: {1, 2}}))
    for number in range(4):
        plan = StepPlan(next(subject.steps), [], [part(0, 7 + number, 1)], awaits_masks=True)
        subject.executor.submit(plan)
        found += sampled(subject.executor.collect())[0]
        subject.executor.send_masks(masks(size, {0: {found[-1] + 2}}))
    found += sampled(subject.executor.collect())[0]
    assert [token - found[0] for token in found] == [0, 2, 4, 6, 8]


@every
def test_blocks_go_to_the_host_and_come_back(subject: Subject) -> None:
    """Blocks come back into other device blocks, and a plan's transfers run in order: out before in."""
    prompt = PROMPTS[1]
    subject.step(part(0, 0, 40), new=[begin(0, prompt)])
    elsewhere = [2 * BLOCKS_EACH, 2 * BLOCKS_EACH + 1]
    transfers = Transfers([BlockTransfer([0, 1], [5, 3])], [BlockTransfer(elsewhere, [5, 3])])
    result = subject.step(part(2, 32, 8), new=[begin(2, prompt, computed=32)], transfers=transfers)
    assert sampled(result)[2] == subject.expected(prompt, 1)


@every
def test_a_step_that_schedules_nobody_moves_blocks_and_changes_nothing(subject: Subject) -> None:
    prompt = PROMPTS[1]
    subject.step(part(0, 0, 40), new=[begin(0, prompt)])
    result = subject.step(transfers=Transfers([BlockTransfer([0, 1], [2, 4])]))
    assert (sampled(result), result.failed_slots, result.ended_transfers) == ({}, {}, [])
    elsewhere = [2 * BLOCKS_EACH, 2 * BLOCKS_EACH + 1]
    subject.step(transfers=Transfers(loads=[BlockTransfer(elsewhere, [2, 4])]))
    result = subject.step(part(0, 40, 1), part(2, 32, 8), new=[begin(2, prompt, computed=32)])
    assert sampled(result) == {0: subject.expected(prompt, 2)[1:], 2: subject.expected(prompt, 1)}


@every
@pytest.mark.parametrize("forgets_weights", [False, True])
def test_memory_that_was_given_back_is_as_it_was_when_it_is_taken_again(
    subject: Subject, forgets_weights: bool
) -> None:
    """Covers recorded steps and the host tier; repeating a command changes nothing."""
    prompt = PROMPTS[1]
    expected = subject.generate(0, prompt, 6)
    for command in (ReleaseMemory(), ReleaseMemory(forgets_weights), RestoreWeights(), RestoreWeights()):
        assert subject.executor.upkeep(command) == []
    subject.executor.upkeep(RestoreCache())
    assert subject.generate(0, prompt, 6) == expected == subject.expected(prompt, 6)
    subject.step(transfers=Transfers([BlockTransfer([0, 1], [5, 3])]))


@real
def test_other_weights(subject: Subject, folder: Path, tmp_path: Path) -> None:
    """They replace the served ones on each rank, and stay when they are forgotten; the original ones come back too."""
    other = make_model(tmp_path, "llama-untied", initializer_range=0.35)
    prompt, expected = PROMPTS[1], reference_tokens(other, [PROMPTS[1]], 6)[0]
    assert not subject.executor.upkeep(CheckWeights(str(other)))
    for command in (RestoreWeights(str(other)), RestoreWeights()):
        for each in (ReleaseMemory(True), command, RestoreCache()):
            assert subject.executor.upkeep(each) == []
        assert subject.generate(0, prompt, 6) == expected != subject.expected(prompt, 6)
    for each in (ReleaseMemory(True), RestoreWeights(str(folder)), RestoreCache()):
        subject.executor.upkeep(each)
    assert subject.generate(0, prompt, 6) == subject.expected(prompt, 6)
    assert "not the absolute path" in subject.executor.upkeep(CheckWeights(str(other / "no")))[0]


@real
def test_each_rank_writes_a_profile(subject: Subject, tmp_path: Path) -> None:
    """Profiles end when told to, or after the given number of steps; a second start changes nothing."""
    for most_steps, wanted_steps in ((100, 6), (2, 2)):
        for most in (most_steps, 1):
            assert subject.executor.upkeep(StartProfile(str(tmp_path), f"first{most_steps}", most)) == []
        subject.generate(0, PROMPTS[0], 6)
        files = subject.executor.upkeep(StopProfile())
        assert sorted(files) == sorted(map(str, tmp_path.glob(f"first{most_steps}.rank*.pt.trace.json.gz")))
        for file in files:
            events = json.loads(gzip.decompress(Path(file).read_bytes()))["traceEvents"]
            noted = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
            assert (noted["compute"], noted["sample"]) == (wanted_steps, wanted_steps)
        assert files
    assert subject.executor.upkeep(StopProfile()) == []


@real
def test_log_probabilities(subject: Subject, folder: Path) -> None:
    prompt = PROMPTS[0]
    result = subject.step(part(3, 0, 7), new=[begin(3, prompt, logprobs=2, num_prompt_logprobs=1)])
    (token,) = sampled(result)[3]
    reference = reference_logprobs(folder, prompt)
    told = [*result.prompt_logprobs[3], *result.logprobs[3]]
    assert [len(entry.token_ids) for entry in told] == [2] * 6 + [3]
    for row, entry, follower in zip(reference, told, [*prompt[1:], token], strict=True):
        assert entry.token_ids[0] == follower
        assert entry.rank == 1 + int((row > row[follower]).sum())
        assert entry.logprobs == pytest.approx(row[entry.token_ids].tolist(), abs=1e-4)


@pytest.mark.parametrize("name", ["uni", "mp"])
def test_a_model_that_is_not_there_says_so(name: str, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=str(tmp_path)), loaded(name, tmp_path):
        pass


# What ends an executor comes last, as all tests share it.
@pytest.mark.parametrize("subject", ["uni", "mp"], indirect=True)
def test_a_step_that_raises_is_the_last_or_costs_itself_only(subject: Subject) -> None:
    with pytest.raises(Exception, match=r"Error|index") as failure:
        subject.step(part(10**6, 0, 1))  # no such slot
    if not isinstance(failure.value, ExecutorDead):
        assert subject.generate(0, PROMPTS[0], 1) == subject.expected(PROMPTS[0], 1)


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["mp of two ranks"], indirect=True)
def test_a_lost_rank_is_the_end(subject: Subject) -> None:
    """The other ranks end too, instead of waiting for it in a collective."""
    _, second = subject.processes
    os.kill(second, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(ExecutorDead):
            subject.step(part(0, 0, 7), new=[begin(0, PROMPTS[0])])
