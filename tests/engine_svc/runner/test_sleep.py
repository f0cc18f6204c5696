"""Real models that sleep and wake generate the same tokens, with recorded steps, drafts and adapters too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_svc.adapters.adapter import read_adapter
from engine_svc.core.engine import Engine
from engine_svc.requests.request import GenerationRequest
from engine_svc.runner.offload import OffloadedTensors
from engine_svc.runner.runner import Runner
from engine_svc.upkeep import CheckWeights
from quire.errors import FailedPrecondition, StartupError
from quire.sampling import SamplingParameters
from quire.sleep import PARTS, SleepLevel
from tests.support.adapter_folders import low_rank, write_adapter
from tests.support.late_copies import LateCopies, late_copies
from tests.support.rank_drafter import RankDrafter
from tests.support.run_engine import Output, random_prompts, running_engine
from tests.support.tiny_models import make_model

__all__ = ["late_copies"]  # a fixture

PROMPTS = random_prompts(7, 40, 16, seed=3)
SAMPLING = SamplingParameters(temperature=0.0, max_tokens=24, ignore_eos=True)
MODULES = {"model.layers.0.self_attn.q_proj": (64, 64), "model.layers.1.self_attn.o_proj": (64, 64)}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("other"), "llama", initializer_range=0.35)


def tokens_of(engine: Engine, requests: list[GenerationRequest], naps: list[SleepLevel], first: int) -> list[list[int]]:
    """Returns the tokens of each request, with a sleep after every few steps."""
    for index, request in enumerate(requests):
        engine.add(first + index, request)
    found = [Output() for _ in requests]
    left, steps = list(naps), 0
    while engine.has_work:
        for delta in engine.step():
            assert delta.error is None, delta.error
            found[delta.key - first].token_ids += delta.token_ids
        steps += 1
        if left and steps % 3 == 0:
            engine.rest.sleep(left.pop())
            engine.check()
            assert not engine.load().busy
            engine.rest.wake_up(PARTS)
    assert not left
    return [each.token_ids for each in found]


def check(engine: Engine, requests: list[GenerationRequest]) -> None:
    wanted = tokens_of(engine, requests, [], 0)
    naps = [SleepLevel.WEIGHTS_FORGOTTEN, SleepLevel.WEIGHTS_KEPT]
    assert tokens_of(engine, requests, naps, 100) == wanted
    assert tokens_of(engine, requests, [], 200) == wanted
    assert all(len(each) == SAMPLING.max_tokens for each in wanted)


def plain() -> list[GenerationRequest]:
    return [GenerationRequest("r", prompt, SAMPLING) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "options",
    [{}, {"enforce_eager": True}, {"num_host_blocks": 8, "num_blocks": 12}, {"quantization": "int8"}],
    ids=["recorded", "eager", "host", "int8"],
)
def test_the_same_tokens_as_before(llama: Path, options: dict[str, Any]) -> None:
    with running_engine(llama, **options) as engine:
        check(engine, plain())


@pytest.mark.parametrize("options", [{}, {"quantization": "int8"}, {"num_host_blocks": 8, "num_blocks": 12}])
def test_replaced_weights_compute_what_a_new_engine_does(llama: Path, other: Path, options: dict[str, Any]) -> None:
    with running_engine(other, **options) as engine:
        wanted = tokens_of(engine, plain(), [], 0)
    with running_engine(llama, **options) as engine:
        before = tokens_of(engine, plain(), [], 0)
        assert engine.upkeep(CheckWeights(str(other))) == []
        engine.rest.replace_weights(str(other), lambda: None)
        assert tokens_of(engine, plain(), [], 100) == wanted != before
        check(engine, plain())  # what is forgotten comes back from the same folder


def test_a_broken_file_is_noticed_before_anything_is_freed(llama: Path, other: Path, tmp_path: Path) -> None:
    with running_engine(llama) as engine:
        before = tokens_of(engine, plain(), [], 0)
        broken = shutil.copytree(other, tmp_path / "broken")
        file = broken / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        (why,) = engine.upkeep(CheckWeights(str(broken)))
        assert f"{file} is not a valid safetensors file" in why
        (why,) = engine.upkeep(CheckWeights("models/new"))
        assert "not the absolute path of a folder" in why
        with pytest.raises(FailedPrecondition, match="the engine is asleep, with none"):
            engine.rest.replace_weights(str(broken), lambda: None)
        engine.rest.wake_up(PARTS)
        assert tokens_of(engine, plain(), [], 100) == before


def test_weights_in_host_memory(tmp_path: Path, late_copies: list[LateCopies]) -> None:
    """A model that forgets its weights also frees that host memory, and allocates it again when it is reloaded."""
    folder = make_model(tmp_path, "llama", num_hidden_layers=6)
    with running_engine(folder, cpu_kernels="torch", cpu_offload_gb=1 / 1024) as engine:
        check(engine, plain())
        assert [len(copies.memory) > 2 for copies in late_copies] == [False, True]
        assert not late_copies[0].memory
        assert all(copies.log for copies in late_copies)
        engine.rest.sleep(SleepLevel.WEIGHTS_FORGOTTEN)
        assert not late_copies[1].memory


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_same_by_processes_for_ranks(llama: Path, ranks: int) -> None:
    with running_engine(llama, distributed_executor_backend="mp", tensor_parallel_size=ranks) as engine:
        check(engine, plain())


def test_models_that_keep_states(tmp_path: Path) -> None:
    with running_engine(make_model(tmp_path, "jamba"), mamba_block_size=16) as engine:
        check(engine, plain())


def test_a_draft_model_guesses_on(llama: Path) -> None:
    """The draft is the target itself, so all guesses are right; what it cached of a sequence is dropped, too."""
    drafter = RankDrafter(3)
    config = {"method": "draft_model", "model": str(llama)}
    with running_engine(llama, drafter=drafter, speculative_config=config) as engine:
        check(engine, plain())
    assert drafter.drafts["right"] == drafter.drafts["all"] > 100
    assert not drafter.failures


def test_adapters_are_read_again(llama: Path, tmp_path: Path) -> None:
    requests = plain()
    for index in range(3):
        folder = write_adapter(tmp_path / str(index), low_rank(MODULES, seed=index))
        adapter = read_adapter(f"a{index}", str(folder), "", index + 1, folder, 16, MODULES)
        requests.append(GenerationRequest("r", PROMPTS[0], SAMPLING, adapter.name, adapter))
    with running_engine(llama, enable_lora=True, max_loras=2, max_cpu_loras=2) as engine:
        check(engine, requests)


@pytest.mark.parametrize("level", [SleepLevel.WEIGHTS_KEPT, SleepLevel.WEIGHTS_FORGOTTEN])
def test_where_memory_is_short_it_sleeps_on(llama: Path, level: SleepLevel, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any) -> None:
        raise torch.OutOfMemoryError("somebody else has it")

    requests = plain()
    with running_engine(llama) as engine:
        expected = tokens_of(engine, requests, [], 0)
        engine.rest.sleep(level)
        with monkeypatch.context() as patch:
            patch.setattr(Runner, "_record_steps", no_memory)
            with pytest.raises(FailedPrecondition, match="somebody else has it"):
                engine.rest.wake_up(PARTS)
        assert engine.load().status.asleep == ("kv_cache",)
        engine.rest.wake_up(PARTS)
        assert tokens_of(engine, requests, [], 100) == expected


@pytest.mark.parametrize(
    ("blocks", "host_blocks", "what"), [(256, 2**34, " of host memory for --swap-space"), (2**34, 0, "")]
)
def test_a_host_without_room_for_the_cache_is_told(llama: Path, blocks: int, host_blocks: int, what: str) -> None:
    with (
        pytest.raises(StartupError, match=rf"[\d.]+ GiB{what} cannot be allocated.*\. Lower"),
        running_engine(llama, num_blocks=blocks, num_host_blocks=host_blocks),
    ):
        pass


def test_memory_that_is_there_in_part_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.arange(5.0), torch.arange(7.0)]
    away = OffloadedTensors(tensors)

    def resize(storage: torch.UntypedStorage, size: int) -> None:
        if size == 28:
            raise torch.OutOfMemoryError
        original(storage, size)

    original = torch.UntypedStorage.resize_
    with monkeypatch.context() as patch:
        patch.setattr(torch.UntypedStorage, "resize_", resize)
        with pytest.raises(torch.OutOfMemoryError):
            away.restore()
    assert [tensor.untyped_storage().nbytes() for tensor in tensors] == [0, 0]
    away.restore()
    assert [tensor.tolist() for tensor in tensors] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6]]


def test_tensors_are_the_same_when_their_memory_is_back() -> None:
    """Covers views, transposed and empty tensors; this is what happens to weights on a GPU."""
    base = torch.arange(24.0).reshape(4, 6)
    views = [base, base[1:3], base.T, torch.empty(0), torch.arange(5, dtype=torch.int8)]
    copies = [view.clone() for view in views]
    away = OffloadedTensors(views)
    assert away.num_bytes == 24 * 4 + 5
    assert [view.untyped_storage().nbytes() for view in views] == [0] * 5
    away.restore()
    assert all(torch.equal(view, copy) for view, copy in zip(views, copies, strict=True))
    assert views[1].data_ptr() == base.data_ptr() + 6 * 4
