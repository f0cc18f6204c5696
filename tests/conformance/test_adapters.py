"""How every executor, including the fake one, handles the adapters in its plans."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_svc.plan import AdapterChanges, AdapterPlacement, CacheSize
from tests.support.adapter_folders import low_rank, write_adapter
from tests.support.fake_adapters import FakeAdapters
from tests.support.fake_executor import FakeExecutor
from tests.support.lora import AdapterExecutor, adapter_executor
from tests.support.run_engine import random_prompts
from tests.support.tiny_models import VOCAB_SIZE, make_model

MODULES = {"model.layers.0.self_attn.q_proj": (64, 64), "model.layers.1.mlp.down_proj": (64, 96)}
PROMPTS = random_prompts(20, 7)
OPTIONS: dict[str, dict[str, Any]] = {
    "uni": {},
    "mp": {"distributed_executor_backend": "mp"},
    "mp of two ranks": {"tensor_parallel_size": 2},
}
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name != "uni" else name for name in OPTIONS]


@pytest.fixture(scope="module", params=[*NAMES, "fake"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdapterExecutor]:
    if request.param != "fake":
        folder = make_model(tmp_path_factory.mktemp("base"), "llama")
        with adapter_executor(folder, max_cpu_loras=8, cpu_threads=1, **OPTIONS[request.param]) as served:
            yield served
        return
    device = FakeAdapters(4, 8, lambda folder: 1, lambda folder: "" if Path(folder).is_dir() else "it is not there")
    executor = FakeExecutor(VOCAB_SIZE, verify=True, adapters=device)
    executor.allocate(CacheSize(256))
    yield AdapterExecutor(executor, executor.spec)


def test_what_is_read_runs_in_the_slot_where_it_is_placed(subject: AdapterExecutor, tmp_path: Path) -> None:
    one, two = (write_adapter(tmp_path / str(seed), low_rank(MODULES, seed=seed)) for seed in range(2))
    found = subject.read(one, two, tmp_path / "nowhere")
    assert [found[folder] == "" for folder in (one, two, tmp_path / "nowhere")] == [True, True, False]
    subject.place({1: one, 4: two})
    alone = {slot: [subject.generate([prompt], [slot], 6)[0] for prompt in PROMPTS] for slot in (0, 1, 4)}
    assert len({str(tokens) for tokens in alone.values()}) == 3
    assert subject.generate(PROMPTS, [1, 4], 6) == [alone[1][0], alone[4][1]]
    assert subject.generate(PROMPTS, [4, 0], 6) == [alone[4][0], alone[0][1]]
    subject.place({1: two, 2: one})  # each replaces the other, and is placed from host memory this time
    assert subject.generate(PROMPTS, [1, 2], 6) == [alone[4][0], alone[1][1]]


def test_what_is_dropped_is_not_told_of_and_never_missed(subject: AdapterExecutor, tmp_path: Path) -> None:
    one, two = (write_adapter(tmp_path / str(seed), low_rank(MODULES, seed=seed)) for seed in range(2))
    keys = {folder: len(subject.keys) + 1 + index for index, folder in enumerate((one, two))}
    subject.keys |= keys
    subject.run([], [], AdapterChanges(read={keys[one]: str(one)}))
    result = subject.run([], [], AdapterChanges(dropped=[keys[one], 10**6], read={keys[two]: str(two)}))
    told = dict(result.read_adapters)
    while keys[two] not in told:
        told |= subject.run([], [], AdapterChanges()).read_adapters
    assert told == {keys[two]: ""}
    placed = [AdapterPlacement(3, keys[two])]
    subject.run([], [], AdapterChanges(placed=placed))
    subject.run([], [], AdapterChanges(placed=placed))  # the same placement again, as after a failed step
    tokens = subject.generate(PROMPTS, [3, 0], 6)
    subject.run([], [], AdapterChanges(dropped=[keys[two]]))
    assert subject.generate(PROMPTS, [0, 0], 6)[1] == tokens[1]
