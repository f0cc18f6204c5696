"""Experts over several ranks: greedy float32 output of the engines equals Transformers', token for token."""

from __future__ import annotations

import random
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from engine_svc.core.engine import Engine
from engine_svc.executor.base import ExecutorDead
from engine_svc.executor.multiproc import MultiprocExecutor
from engine_svc.executor.uniproc import UniprocExecutor
from engine_svc.layers.context import LayerContext
from engine_svc.layers.expert_routes import ExpertRoutes
from engine_svc.layers.experts import Experts, ExpertsShape
from engine_svc.layers.parameter import LoadedParameter
from engine_svc.loader.model import sharing_of
from engine_svc.ops.base import ExpertsForm
from engine_svc.ops.plain import PlainOps
from engine_svc.parallel.group import ParallelGroup, ParallelGroups
from engine_svc.parallel.layout import ParallelLayout
from engine_svc.parallel.placement import linear
from engine_svc.quantization.unquantized import Unquantized
from quire.errors import Internal
from quire.options.experts import ExpertOptions
from quire.options.model import ModelOptions
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.data_ranks import running_data_ranks
from tests.support.engine_options import engine_options
from tests.support.exact_answers import check_answers
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine, tokens
from tests.support.tensor_executor import TensorExecutor
from tests.support.tiny_models import check_greedy

PROMPTS, SAMPLING = random_prompts(1, 17, 50), replace(GREEDY, max_tokens=40)
TENSOR = {"tensor_parallel_size": 2, "enable_expert_parallel": True, "cpu_threads": 1}


def check(folder: Path, **options: Any) -> None:
    with running_engine(folder, **TENSOR | options) as engine:
        found = run(engine, PROMPTS, replace(SAMPLING, logprobs=4))
    check_answers(folder, PROMPTS, found, SAMPLING.max_tokens or 0)


@pytest.mark.slow
def test_ranks_have_experts_whole(model_folder: ModelFolder) -> None:
    """Covers biases and stacked expert tensors; one rank has one expert more than the other."""
    check(model_folder("gpt-oss", num_local_experts=5))


def test_experts_that_return_their_inputs_are_on_no_rank(model_folder: ModelFolder) -> None:
    """Of five other experts, one rank has one more than the other. All are counted, to be moved."""
    check(
        model_folder("longcat"), executor=TensorExecutor(), enable_eplb=True, eplb_config={"num_redundant_experts": 1}
    )


@pytest.mark.parametrize("redundant", [0, 2])
def test_no_expert_is_nowhere(redundant: int) -> None:
    """Expert -1, chosen in padding rows, has no slot on any rank, and every other expert is on exactly one."""
    layout, chosen = ParallelLayout(tensor=2, expert=2), torch.tensor([[0, -1], [3, -1], [-1, 2]])
    found = [
        ExpertRoutes(linear(4, 2, redundant), layout, rank, torch.device("cpu")).slots_of(0, chosen) for rank in (0, 1)
    ]
    assert ((found[0] >= 0) ^ (found[1] >= 0)).equal(chosen >= 0)


class Unread:
    """A checkpoint tensor of another rank, which must not be read."""

    def get_shape(self) -> list[int]:
        return [8, 16]

    def __getitem__(self, index: Any) -> torch.Tensor:
        raise AssertionError("it is read")


class Held:
    """A tensor with the interface of a checkpoint's."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._tensor[index]


def experts_of_second_rank(count: int, **fields: Any) -> Experts:
    second = ParallelGroup(1, 2)
    groups = ParallelGroups(ParallelLayout(tensor=2, expert=2), 1, tensor=second, expert=second)
    method = Unquantized(torch.float32)
    context = LayerContext(groups, torch.float32, torch.device("cpu"), PlainOps(), method, "mlp.experts", **fields)
    return Experts(ExpertsShape(count, 16, 2, 8, bias=False), ExpertsForm(), context=context)


def test_a_rank_reads_its_own_experts_alone() -> None:
    for name, parameter in experts_of_second_rank(4).named_parameters():
        assert isinstance(parameter, LoadedParameter)
        for shard in ("gate", "up") if "gate_up" in name else ("down",):
            assert parameter.missing >= {f"2.{shard}", f"3.{shard}"}
            parameter.load(Unread(), f"1.{shard}")
            with pytest.raises(ValueError, match="expert 4 in the checkpoint, of 4"):
                parameter.load(Unread(), f"4.{shard}")
        assert len(parameter) == 2


def test_more_ranks_than_experts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the 1 experts of a layer .* 2 ranks"):
        experts_of_second_rank(1)


@pytest.mark.parametrize(("family", "ranks"), [("mixtral", 1), ("llama", 0)])
def test_one_rank_says_whether_more_would_share_experts_with_it(
    model_folder: ModelFolder, family: str, ranks: int
) -> None:
    executor = UniprocExecutor()
    options = engine_options(dtype="float32", num_gpu_blocks_override=8, use_tqdm_on_load=False)
    spec = executor.load(ModelOptions(model=str(model_folder(family))), options)
    executor.close()
    assert spec.lockstep_ranks == ranks


def test_adapters_of_experts_that_ranks_have_whole_are_not_taken() -> None:
    """Such experts register no adapter, so an adapter for these modules is refused by their names."""
    adapters: Any = SimpleNamespace(experts=lambda *arguments: pytest.fail("it asks for them"))
    experts = experts_of_second_rank(2, adapters=adapters)
    for name, parameter in experts.named_parameters():
        assert isinstance(parameter, LoadedParameter)
        for shard in ("gate", "up") if "gate_up" in name else ("down",):
            parameter.load(Held(torch.ones((16, 8) if shard == "down" else (8, 16))), f"1.{shard}")
        assert not parameter.missing
    experts.pack()


@pytest.mark.parametrize(
    ("num_groups", "redundant", "strategy"), [(4, 0, "round_robin"), (1, 0, "linear"), (4, 2, "linear")]
)
def test_dealing_in_turn_is_for_groups_of_experts_that_are_there_once(
    caplog: pytest.LogCaptureFixture, num_groups: int, redundant: int, strategy: str
) -> None:
    groups = ParallelGroups(ParallelLayout(tensor=2, expert=2))
    config: Any = SimpleNamespace(moe=(None, SimpleNamespace(num_groups=num_groups)))
    options = ExpertOptions(
        enable_expert_parallel=True, expert_placement_strategy="round_robin", enable_eplb=True,
        eplb_config={"num_redundant_experts": redundant},
    )  # fmt: skip
    assert sharing_of(options, config, groups).strategy == strategy
    assert ("experts are placed linearly" in caplog.text) == (strategy == "linear")


Answered = list[tuple[list[list[int]], list[list[int]]]]


def check_all(folder: Path, found: list[Answered]) -> None:
    for prompts, answers in (each for rank in found for each in rank):
        check_greedy(folder, prompts, answers, len(answers[0]))


def requests_now_and_then(number: int, engine: Engine) -> Answered:
    """Runs a few prompts with shared prefixes at a time, with pauses; returns prompts and answers of each turn."""
    generator, found = random.Random(number), []
    beginning = random_prompts(40, seed=number)[0]
    for turn in range(4):
        prompts = random_prompts(*(generator.randint(1, 40) for _ in range(generator.randint(1, 3))), seed=turn)
        prompts = [beginning + prompt if turn % 2 else prompt for prompt in prompts]
        found.append((prompts, tokens(run(engine, prompts, replace(GREEDY, max_tokens=generator.randint(1, 30))))))
        time.sleep(generator.choice([0.0, 0.1, 0.3]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "count", "options"),
    [
        # Slices of all experts on each rank, in two stages; preempted, in chunks.
        ("llama4", 2, {"num_blocks": 16, "max_num_batched_tokens": 24, "pipeline_parallel_size": 2}),
        ("glm-moe", 2, TENSOR | {"expert_placement_strategy": "round_robin"}),
        ("gpt-oss", 3, {"enable_expert_parallel": True, "all2all_backend": "allgather_reducescatter"}),
    ],
    ids=str,
)
def test_data_ranks_that_work_at_different_times(
    model_folder: ModelFolder, family: str, count: int, options: dict[str, Any]
) -> None:
    folder = model_folder(family)
    with running_data_ranks(folder, count, **options) as ranks:
        check_all(folder, ranks.each(requests_now_and_then))


def skewed(folder: Path, target: Path) -> Path:
    """Changes the router so that tokens choose only among the first four of eight experts: those of the first rank."""
    shutil.copytree(folder, target)
    written = load_file(target / "model.safetensors")
    for name, tensor in written.items():
        if name.endswith("e_score_correction_bias"):
            written[name] = torch.tensor([1.0] * 4 + [0.0] * 4, dtype=tensor.dtype)
    save_file(written, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.mark.slow
def test_a_data_rank_that_is_lost_is_named_and_ends_the_others(
    model_folder: ModelFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    """Even ranks that are idle hear of the loss and end."""
    folder = model_folder("mixtral")
    with running_data_ranks(folder, 2, enable_expert_parallel=True) as ranks:
        check_all(folder, ranks.each(requests_now_and_then))
        lost = ranks.engines[1]._executor
        assert isinstance(lost, MultiprocExecutor)
        assert lost._ranks is not None
        lost._ranks.kill()

        def go_on(engine: Engine) -> None:
            for _ in range(300):
                engine._executor.check_alive(asks=True)
                run(engine, PROMPTS)
                time.sleep(0.1)

        def end(number: int, engine: Engine) -> str:
            with pytest.raises(ExecutorDead) as raised:
                go_on(engine)
            engine.give_up(Internal("It is over."))
            return str(raised.value)

        why = ranks.each(end)[0]
    assert "data-parallel rank 1 is lost" in why or "rank 0 (process" in why
    assert "data-parallel rank 1 is lost (rank 1 of 2)" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("options", [TENSOR, {"quantization": "int8"}], ids=["tensor ranks", "data ranks, int8"])
def test_experts_move_while_serving(
    model_folder: ModelFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str],
    options: dict[str, Any],
) -> None:  # fmt: skip
    """Tokens stay the same, and the load becomes balanced over the ranks."""
    caplog.set_level("INFO")  # for ranks, whose log lines go to this process's terminal
    folder = skewed(model_folder("glm-moe"), tmp_path / "skewed")
    config = {"step_interval": 12, "window_size": 8, "num_redundant_experts": 1}
    options = {"enable_expert_parallel": True, "enable_eplb": True, "eplb_config": config} | options
    if "quantization" in options:
        with running_engine(folder, quantization="int8") as engine:
            expected = tokens(run(engine, PROMPTS, SAMPLING))
        with running_data_ranks(folder, 2, **options) as ranks:
            assert ranks.each(lambda _, engine: tokens(run(engine, PROMPTS, SAMPLING))) == [expected] * 2
    else:
        check(folder, **options)
    found = re.findall(r"balancedness went from ([\d.]+) to ([\d.]+)", capfd.readouterr().err)
    before, after = (float(each) for each in found[0])
    assert before < 0.65
    assert after > before + 0.15
