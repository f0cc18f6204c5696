"""Models run by Transformers' own code on several ranks, by that library's plans, answer as that library does alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from msgspec.structs import replace
from safetensors.torch import load_file
from torch.testing._internal.distributed.fake_pg import FakeStore

from engine_svc.loader.model import _division
from engine_svc.models.transformers_model import TransformersModel
from engine_svc.parallel.group import ParallelGroup, ParallelGroups
from engine_svc.parallel.layout import ParallelLayout
from engine_svc.quantization.source import HeldTensor
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.engine_options import engine_options
from tests.support.exact_answers import check_answers
from tests.support.forked_ranks import run_forks
from tests.support.model_zoo.configurations import tiny_configuration
from tests.support.model_zoo.walk import _save
from tests.support.rank_drafter import RankDrafter
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine, tokens
from tests.support.staged_executor import StagedExecutor
from tests.support.tiny_models import check_greedy

PROMPTS = random_prompts(1, 17, 40)
SAMPLING = replace(GREEDY, max_tokens=16)


@pytest.mark.parametrize(
    ("family", "stages"),
    [("llama", 2), ("llama-untied", 3), ("gemma3", 3), ("gemma2", 2), ("qwen3-moe", 2)],
)
def test_stages(model_folder: ModelFolder, family: str, stages: int) -> None:
    """Covers families with windows, scaled embeddings, tied embeddings and experts."""
    folder = model_folder(family)
    options = {"pipeline_parallel_size": stages, "cpu_threads": 1, "model_impl": "transformers"}
    with running_engine(folder, executor=StagedExecutor(), max_num_batched_tokens=33, **options) as engine:
        found = run(engine, PROMPTS, replace(SAMPLING, logprobs=4))
    check_answers(folder, PROMPTS, found, 16)


def test_a_draft_model_guesses_for_them(model_folder: ModelFolder) -> None:
    """The draft model runs by Quire's own code, beside the last stage."""
    folder, drafter = model_folder("llama"), RankDrafter(3)
    options = {"pipeline_parallel_size": 2, "cpu_threads": 1, "model_impl": "transformers"}
    config = {"method": "draft_model", "model": str(folder)}
    with running_engine(
        folder, executor=StagedExecutor(), drafter=drafter, speculative_config=config, **options
    ) as engine:
        found = tokens(run(engine, PROMPTS[1:], SAMPLING))
    check_greedy(folder, PROMPTS[1:], found, 16)
    assert drafter.drafts["right"] == drafter.drafts["all"] > 15


# Code of one of several ranks: runs one model after the other and samples.
CODE = """
import json, sys
from pathlib import Path
import torch
from engine_svc.parallel.group import join_groups
from engine_svc.parallel.layout import ParallelLayout
from engine_svc.plan import CacheSize, NewSequence, SamplingPlan, ScheduledSequence, StepPlan
from engine_svc.runner.runner import Runner
from quire.options.model import ModelOptions
from quire.sampling import SamplingParameters
from tests.support.engine_options import engine_options

rank, folder, models, prompts, count = int(sys.argv[1]), sys.argv[2], *map(json.loads, sys.argv[3:6])
groups = join_groups(ParallelLayout(tensor=2), rank, folder + "/meet", torch.device("cpu"), True)
options = engine_options(dtype="float32", model_impl="transformers", tensor_parallel_size=2, cpu_threads=1,
                         use_tqdm_on_load=False, max_model_len=96)
found = []
for model in models:
    runner = Runner(ModelOptions(model=model), options, groups, torch.device("cpu"))
    runner.allocate(CacheSize(24))
    # Each of the model's groups of layers has blocks of its own.
    size, kinds = runner.spec().block_size, len(runner.spec().windows)
    blocks = [list(range(kind * 6, kind * 6 + 6)) for kind in range(kinds)]
    answers = []
    for prompt in prompts:
        sampling = SamplingPlan(SamplingParameters(temperature=0.0))
        new = [NewSequence(0, prompt, len(prompt), 0, blocks, sampling)]
        where, length, answer = 0, len(prompt), []
        for _ in range(count):
            plan = StepPlan(0, new, [ScheduledSequence(0, where, length, 1, [])])
            answer += runner.step(plan).sampled_token_ids[0]
            new, where, length = [], where + length, 1
        answers.append(answer)
    found.append(answers)
Path(folder, f"{rank}.json").write_text(json.dumps(found))
"""


@pytest.mark.slow
def test_tensor_ranks(model_folder: ModelFolder, tmp_path: Path) -> None:
    """Covers a key-value head that both ranks hold, with a vocabulary that does not divide evenly; biases; several
    parameters in one checkpoint tensor; windows; outputs of all heads on both ranks; experts.
    """
    saved = [tmp_path / "starcoder2", tmp_path / "hrm_text"]
    for folder in saved:
        _save(tiny_configuration(folder.name), folder)
    others = [model_folder(family) for family in ("gemma3", "olmo2", "qwen3-moe")]
    folders = [model_folder("llama", num_key_value_heads=1, vocab_size=161), *saved, *others]
    given = [json.dumps(each) for each in ([str(folder) for folder in folders], PROMPTS[1:], 6)]
    assert run_forks(CODE, [(rank, tmp_path, *given) for rank in range(2)], 240) == [0, 0]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0] == ranks[1]
    for folder, found in zip(folders, ranks[0], strict=True):
        check_greedy(folder, PROMPTS[1:], found, 6)


class Counted(HeldTensor):
    """A checkpoint tensor that counts how much of it is read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        self.read = 0

    def __getitem__(self, index: Any) -> torch.Tensor:
        part = super().__getitem__(index)
        self.read += part.numel()
        return part


@pytest.fixture
def fake_group() -> Iterator[ParallelGroup]:
    """A group of two ranks in which this is the first; the second does not exist."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield ParallelGroup(0, 2, dist.group.WORLD)
    dist.destroy_process_group()


def read_share(folder: Path, groups: ParallelGroups, **options: Any) -> dict[str, float]:
    """For each tensor that a rank reads, returns the share of it that is read."""
    held = {name: Counted(tensor) for name, tensor in load_file(folder / "model.safetensors").items()}
    load_share(folder, groups, lambda: held, **options)
    return {name: tensor.read / tensor[...].numel() for name, tensor in held.items() if tensor.read}


def load_share(folder: Path, groups: ParallelGroups, read: Callable[[], Any], **options: Any) -> TransformersModel:
    """Returns a rank's part of a model.

    Args:
        read: returns the checkpoint's tensors; if it returns None, the library reads them.
    """
    config, device = json.loads((folder / "config.json").read_text()), torch.device("cpu")
    division = _division(groups, engine_options(**options), device)
    return TransformersModel(folder, config, torch.float32, device, False, read, division)


def test_a_tensor_rank_reads_its_slices_alone(model_folder: ModelFolder, fake_group: ParallelGroup) -> None:
    groups = ParallelGroups(ParallelLayout(tensor=2), 0, tensor=fake_group)
    for name, share in read_share(model_folder("qwen3-moe"), groups).items():
        assert share == (1 if "norm" in name or "mlp.gate." in name else 0.5), name


def test_a_stage_reads_its_layers_alone(model_folder: ModelFolder) -> None:
    """A tied embedding is read by the first and the last stage."""
    for family, ends in (("llama", {"model.embed_tokens"}), ("llama-untied", {"lm_head"})):
        for rank in range(3):
            groups = ParallelGroups(ParallelLayout(pipeline=3), rank)
            read = read_share(model_folder(family), groups, pipeline_parallel_size=3)
            assert {name.split(".")[2] for name in read if ".layers." in name} == {str(rank)}
            expected = ({"model.embed_tokens"}, set[str](), ends | {"model.norm"})[rank]
            assert {name.rpartition(".")[0] for name in read if ".layers." not in name} == expected


def test_experts_are_no_part_of_it_by_themselves(model_folder: ModelFolder) -> None:
    with (
        pytest.raises(StartupError, match="does not support --enable-expert-parallel"),
        running_engine(
            model_folder("qwen3-moe"),
            model_impl="transformers",
            tensor_parallel_size=2,
            enable_expert_parallel=True,
            executor=StagedExecutor(),
        ),
    ):
        pass  # fmt: skip


@pytest.mark.parametrize(
    ("plans", "words"),
    [
        ({"base_model_tp_plan": None}, "no plan for dividing its layers among ranks"),
        (
            {"base_model_tp_plan": {"layers.*.mlp.up_proj": "sequence_parallel"}},
            r"model\.layers\.\*\.mlp\.up_proj among ranks by 'sequence_parallel', which is not supported",
        ),
        ({"num_attention_heads": 1, "num_key_value_heads": 1}, "q_proj has 1 heads, which cannot be divided"),
    ],
)
def test_plans_that_are_not_known(
    fake_group: ParallelGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: dict[str, Any], words: str
) -> None:
    groups = ParallelGroups(ParallelLayout(tensor=2), 0, tensor=fake_group)
    refused(tmp_path, monkeypatch, plans, groups, words)


@pytest.mark.parametrize(
    ("plans", "words"),
    [
        ({"base_model_pp_plan": None}, "no plan for dividing its layers into stages"),
        (
            {"base_model_pp_plan": {"layers": (["hidden_states", "memory"], ["hidden_states"])}},
            r"model\.layers turns hidden_states, memory into hidden_states",
        ),
        ({"base_model_pp_plan": {"blocks": (["hidden_states", "attention_mask"], ["hidden_states"])}}, "blocks"),
    ],
)
def test_stages_that_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: dict[str, Any], words: str
) -> None:
    refused(tmp_path, monkeypatch, plans, ParallelGroups(ParallelLayout(pipeline=2), 1), words)


def refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, plans: dict[str, Any], groups: ParallelGroups, words: str
) -> None:
    """Checks that a Llama with these plans, or of this shape, is refused."""
    config = tiny_configuration("llama")
    for name, value in plans.items():
        if name.startswith("base_model"):
            monkeypatch.setattr(transformers.LlamaConfig, name, value)
        else:
            setattr(config, name, value)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    with pytest.raises(StartupError, match=words):
        read_share(folder, groups, pipeline_parallel_size=groups.layout.pipeline)


def test_parameters_that_stand_in_one_tensor_are_cut_when_they_are_apart(
    fake_group: ParallelGroup, tmp_path: Path
) -> None:
    """Transformers would slice a rank's part out of the fused tensor and get rows of the other parameter."""
    _save(tiny_configuration("hrm_text"), tmp_path)
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).state_dict()
    groups = ParallelGroups(ParallelLayout(tensor=2), 0, tensor=fake_group)
    parts = dict(load_share(tmp_path, groups, lambda: None)._decoder.named_parameters())
    for name, part in parts.items():
        assert part.equal(whole[f"model.{name}"][tuple(map(slice, part.shape))]), name
    for name in ("self_attn.gate_proj", "self_attn.v_proj", "mlp.up_proj"):
        assert parts[f"H_module.layers.0.{name}.weight"].shape == (32, 64)


def test_parameters_that_stand_in_one_tensor_are_refused_in_other_styles(
    fake_group: ParallelGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(tiny_configuration("hrm_text"), tmp_path)
    plan = {
        f"{stack}_module.layers.*.mlp.{name}_proj": "colwise_gather_output" for stack in "LH" for name in ("gate", "up")
    }
    monkeypatch.setattr(transformers.HrmTextConfig, "base_model_tp_plan", plan)
    groups = ParallelGroups(ParallelLayout(tensor=2), 0, tensor=fake_group)
    with pytest.raises(StartupError, match=r"has .*gate_up_proj.* in a form that ranks cannot read in parts"):
        read_share(tmp_path, groups)


def test_layers_that_take_more_than_hidden_states_are_refused(tmp_path: Path) -> None:
    """Gemma 3n's layers also take per-layer embeddings, which belong to another stage."""
    _save(tiny_configuration("gemma3n_text"), tmp_path)
    with pytest.raises(StartupError, match=r"cannot run: .*\. It may run without --pipeline-parallel-size"):
        read_share(tmp_path, ParallelGroups(ParallelLayout(pipeline=2), 1), pipeline_parallel_size=2)
