"""Heads draft what plain torch drafts with the same weights, and change nothing in the output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from engine_svc.adapters.adapter import read_adapter
from engine_svc.parallel.group import ParallelGroups
from engine_svc.plan import CacheSize
from engine_svc.requests.request import GenerationRequest
from engine_svc.runner.runner import Runner
from quire.errors import StartupError
from quire.options.model import ModelOptions
from quire.sampling import SamplingParameters
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.runner.test_drafting import Driver
from tests.support.adapter_folders import low_rank, write_adapter
from tests.support.deepseek_v4 import PUBLISHED, make_deepseek_v4, publish
from tests.support.deepseek_v4 import add_multi_token_layer as add_deepseek_v4_layer
from tests.support.engine_options import engine_options
from tests.support.heads import Reference, make_eagle, make_eagle3
from tests.support.multi_token import PUBLISHED as MULTI_TOKEN
from tests.support.multi_token import add_multi_token_layer, make_multi_token
from tests.support.native import needs_native
from tests.support.rank_drafter import RankDrafter
from tests.support.recorder import Recorder, record_prompts
from tests.support.run_engine import random_prompts, run, run_requests, running_engine, tokens
from tests.support.step3 import add_step3_multi_token_layer, make_step3
from tests.support.tiny_models import make_model

GREEDY = SamplingParameters(temperature=0.0, max_tokens=24, ignore_eos=True)
SEEDED = replace(GREEDY, temperature=0.8, top_k=20, seed=7)
PROMPTS = random_prompts(5, 33, 60, 18)


class Made:
    """A target with a head, and a plain torch reference of both."""

    def __init__(self, target: Path, reference: Reference, **config: Any) -> None:
        self.target, self.reference, self.config = target, reference, config


def eagle(folder: Path, target: Path) -> Made:
    return Made(target, make_eagle(folder, target), method="eagle", model=str(folder))


def eagle3(folder: Path, target: Path) -> Made:
    return Made(target, make_eagle3(folder, target), method="eagle3", model=str(folder))


def eagle3_of_other_layers(folder: Path, target: Path) -> Made:
    reference = make_eagle3(folder, target, None, (1, 3, 4), norm_before_residual=True)
    return Made(target, reference, method="eagle3", model=str(folder))


def multi_token(kind: str) -> Callable[[Path, Path], Made]:
    def make(folder: Path, _target: Path) -> Made:
        return Made(folder, make_multi_token(folder, kind), method="mtp", num_speculative_tokens=5)

    return make


def step3(folder: Path, _target: Path) -> Made:
    return Made(
        folder, add_step3_multi_token_layer(folder, make_step3(folder)), method="step3p5_mtp", num_speculative_tokens=5
    )


def deepseek_v4(folder: Path, _target: Path) -> Made:
    model = make_deepseek_v4(folder, **PUBLISHED)
    publish(folder)
    return Made(folder, add_deepseek_v4_layer(folder, model), method="mtp", num_speculative_tokens=5)


HEADS = {
    "eagle": eagle, "eagle3": eagle3, "eagle3-other-layers": eagle3_of_other_layers,
    "deepseek-v3": multi_token("deepseek-v3"), "qwen3-next": multi_token("qwen3-next"),
    "nemotron-h": multi_token("nemotron-h"), "step3.5": step3,
    "deepseek-v4": deepseek_v4,
}  # fmt: skip


@pytest.fixture(scope="module", params=HEADS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_folder: ModelFolder) -> Made:
    target = model_folder("llama", tie_word_embeddings=False, num_hidden_layers=7)
    return HEADS[request.param](tmp_path_factory.mktemp(request.param), target)


def test_guesses_are_those_of_plain_torch(made: Made) -> None:
    """Covers drafts after a prompt, after single steps, and after steps whose drafts were wrong or not wanted."""
    check_guesses(made, run_head(made))


@pytest.mark.parametrize("kind", sorted({*MULTI_TOKEN} - {*HEADS}))
def test_families_guess_what_plain_torch_does(kind: str, tmp_path: Path) -> None:
    """Their layers are read in published checkpoints, and differ in what they read and in where their last norm is."""
    made = multi_token(kind)(tmp_path, tmp_path)
    driver = Driver(run_head(made), PROMPTS[1])
    guessed = driver.start([3, 1, 7, 2], wanted=3)
    assert driver.token_ids[-1] == int(made.reference.target(torch.tensor([PROMPTS[1]])).logits[0, -1].argmax())
    assert guessed == {0: made.reference.guess(driver.token_ids, 3)}


def test_what_a_layer_predicts_well_is_accepted(tmp_path: Path) -> None:
    """Where a token says which one is next, a layer that hands on the embedding of one knows the one after it."""
    make_multi_token(tmp_path, "mimo")
    tensors = load_file(tmp_path / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
        elif "norm" in name:
            tensor.fill_(1.0)
    projection = tensors["model.mtp_layers.0.input_proj.weight"]
    projection.copy_(torch.eye(2 * len(projection))[len(projection) :])
    save_file(tensors, tmp_path / "model.safetensors")
    drafter, config = RankDrafter(3), {"method": "mimo_mtp", "num_speculative_tokens": 3}
    with running_engine(tmp_path, drafter=drafter, speculative_config=config) as engine:
        run(engine, PROMPTS[:2], GREEDY)
    assert drafter.drafts["right"] == drafter.drafts["all"] > 30


@pytest.mark.slow
@pytest.mark.parametrize("head", ["eagle3-other-layers", "deepseek-v3"])
def test_heads_are_replayed(
    head: str, tmp_path: Path, model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs are replayed with the target's features and with the head's own, but not for the prompt."""
    made = HEADS[head](tmp_path, model_folder("llama", tie_word_embeddings=False, num_hidden_layers=5))
    record_prompts(monkeypatch)
    monkeypatch.setattr(Runner, "_run_prompt", lambda *_: None)  # a warm-up; the interpreter compiles nothing
    runner, recorder = run_head(made, attention_backend="triton", max_num_seqs=1), Recorder()
    assert runner.make_graphs(recorder, 4) == recorder.recorded == 2 * 2  # of the target and the head
    check_guesses(made, runner)
    # The head's replays for each guess and the target's for each step, except the first of each.
    assert recorder.replays == (4 + 3 + 5) + 5 - 2


@needs_native
@pytest.mark.parametrize("made", ["eagle", "eagle3"], indirect=True)
def test_passes_of_heads_are_recorded(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    """Passes of heads run as recorded C++ kernel calls, too; see tests/engine_svc/runner/test_native_calls.py."""
    with caplog.at_level("DEBUG", place := "engine_svc.runner.native_calls"):
        check_guesses(made, run_head(made))
    kinds = {record.getMessage().partition(";")[0] for record in caplog.records if record.name == place}
    assert len(kinds) == 2  # calls of the target's pass, and of the head's
    assert all(kind.startswith("recorded") for kind in kinds)


def run_head(made: Made, **chosen: Any) -> Runner:
    options = engine_options(dtype="float32", use_tqdm_on_load=False, speculative_config=made.config, **chosen)
    runner = Runner(ModelOptions(model=str(made.target)), options, ParallelGroups(), torch.device("cpu"))
    runner.allocate(CacheSize(128, num_snapshots=1))
    return runner


def check_guesses(made: Made, runner: Runner) -> None:
    driver = Driver(runner, PROMPTS[1])
    for blocks, wanted in (([3, 1, 7, 2], 4), (None, 3), (None, 0), (None, 0), (None, 5)):
        guessed = driver.start(blocks, wanted=wanted) if blocks else driver.go_on(wanted=wanted)
        expected = {0: made.reference.guess(driver.token_ids, wanted)} if wanted else {}
        assert guessed == expected


def test_tokens_are_those_without(made: Made) -> None:
    """Holds also for prefix cache hits after a pause in which the head did not run."""
    prompts = PROMPTS[: 2 if "mtp" in made.config["method"] else 4]  # mixtures are slow
    requests = [GenerationRequest("r", prompt, (SEEDED, GREEDY)[index % 2]) for index, prompt in enumerate(prompts)]
    with running_engine(made.target, max_num_batched_tokens=24) as engine:
        expected = tokens(run_requests(engine, requests))
    drafter = RankDrafter(3)
    with running_engine(
        made.target, drafter=drafter, speculative_config=made.config, max_num_batched_tokens=24
    ) as engine:
        drafter.pauses = True
        assert tokens(run_requests(engine, requests)) == expected
        assert not drafter.drafts
        drafter.pauses = False
        assert tokens(run_requests(engine, requests)) == expected
    assert drafter.drafts["all"] > 60


def test_a_head_keeps_up_with_what_is_cached(made: Made) -> None:
    """The head is at most a block behind, so what is found in the prefix cache is valid for the head as well."""
    runner = run_head(made)
    first = Driver(runner, PROMPTS[1], saves=48)  # 33 tokens
    first.start([3, 1, 7, 2])
    while len(first.token_ids) < 50:
        first.go_on()
    second = Driver(runner, first.token_ids[:-1], 1, saves=48)
    # The head's output for a block's last token depends on the next block's first token, which is the same here.
    assert second.start([3, 1, 7, 9], found=48, wanted=3) == {1: made.reference.guess(second.token_ids, 3)}


@pytest.mark.slow
@pytest.mark.parametrize("head", ["eagle3", "deepseek-v3"])
def test_two_ranks(head: str, tmp_path: Path, model_folder: ModelFolder) -> None:
    """Covers a head with its own embedding, and one that uses the model's and has experts."""
    made = HEADS[head](tmp_path, model_folder("llama", tie_word_embeddings=False, num_hidden_layers=7))
    options = {"drafter": RankDrafter(3), "speculative_config": made.config}
    with running_engine(made.target, **options) as engine:  # type: ignore[arg-type]
        expected = tokens(run(engine, PROMPTS, SEEDED))
    drafter = RankDrafter(3)
    with running_engine(made.target, drafter=drafter, speculative_config=made.config, tensor_parallel_size=2) as engine:
        assert tokens(run(engine, PROMPTS, SEEDED)) == expected
    assert drafter.drafts == options["drafter"].drafts  # type: ignore[attr-defined]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architectures": ({"architectures": ["EagleMixtralForCausalLM"]}, "expected one of LlamaForCausalLM"),
    "hidden_size": ({"hidden_size": 32}, r"hidden_size in config\.json is 32; expected 64"),
    "vocab_size": ({"vocab_size": 100}, r"vocab_size in config\.json is 100; expected 160"),
    "num_hidden_layers": ({"num_hidden_layers": 2}, "is 2; expected 1 for eagle3"),
    "layers": ({"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, r"reads the inputs of three layers, here \[1, 2, 9\]"),
    "intermediate_size": ({"intermediate_size": 48}, "mlp.down_proj.weight: shape"),
    "draft_vocab_size": ({"draft_vocab_size": 30}, "shape"),
}  # fmt: skip


@pytest.mark.parametrize("field", REFUSED)
def test_heads_of_other_models_are_refused(field: str, tmp_path: Path, model_folder: ModelFolder) -> None:
    target, (changes, message) = model_folder("llama", tie_word_embeddings=False, num_hidden_layers=7), REFUSED[field]
    made = eagle3(tmp_path, target)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    options = engine_options(dtype="float32", use_tqdm_on_load=False, speculative_config=made.config)
    with pytest.raises(StartupError, match=message) as caught:
        Runner(ModelOptions(model=str(target)), options, ParallelGroups(), torch.device("cpu"))
    assert str(caught.value).startswith(f"--speculative-config: the draft {tmp_path}: ")


def test_a_head_of_layers_that_pass_on_streams_is_refused(tmp_path: Path, model_folder: ModelFolder) -> None:
    made = eagle3(tmp_path, model_folder("llama", tie_word_embeddings=False, num_hidden_layers=7))
    options = engine_options(dtype="float32", use_tqdm_on_load=False, speculative_config=made.config)
    with pytest.raises(StartupError, match="passes several streams of hidden states from layer to layer"):
        Runner(ModelOptions(model=str(model_folder("gemma3n"))), options, ParallelGroups(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {}, "Multi-token prediction is not supported for LlamaForCausalLM"),
        ("deepseek-v3", {"num_nextn_predict_layers": None}, "num_nextn_predict_layers in config.json is None"),
        ("deepseek-v3", {"num_nextn_predict_layers": 1}, r"the checkpoint has no tensor layers\.3\.\*"),
        ("qwen3.5", {}, r"the checkpoint has no tensor mtp\.layers\.0\.\*"),
        ("qwen3.5", {"mtp_num_hidden_layers": 0}, "mtp_num_hidden_layers in config.json is 0"),
        (
            "nemotron-h",
            {"num_nextn_predict_layers": 1, "mtp_layers_block_type": ["mamba", "moe"]},
            "layers of the kinds mamba, moe for multi-token prediction",
        ),
    ],
)
def test_models_without_such_layers_are_refused(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_model(tmp_path, family)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    options = engine_options(dtype="float32", use_tqdm_on_load=False, speculative_config={"method": "mtp"})
    with pytest.raises(StartupError, match=message):
        Runner(ModelOptions(model=str(tmp_path)), options, ParallelGroups(), torch.device("cpu"))


def test_a_model_without_its_extra_layers_pays_nothing(tmp_path: Path) -> None:
    """The layers are in the checkpoint, but are neither loaded nor counted."""
    make_model(tmp_path, "deepseek-v3")
    add_multi_token_layer(tmp_path)
    options = engine_options(dtype="float32", use_tqdm_on_load=False)
    runner = Runner(ModelOptions(model=str(tmp_path)), options, ParallelGroups(), torch.device("cpu"))
    assert runner.spec().draft_bytes_per_block == 0


def test_adapters_are_verified_and_not_drafted_with(tmp_path: Path, model_folder: ModelFolder) -> None:
    """Draft models and heads have no adapter, even where a head calls the model's own output layer."""
    target = model_folder("llama", tie_word_embeddings=False, num_hidden_layers=7)
    modules = {"model.layers.0.self_attn.q_proj": (64, 64), "lm_head": (160, 64)}
    path = write_adapter(tmp_path / "adapter", low_rank(modules, seed=1))
    adapter = read_adapter("a", str(path), "", 1, path, 16, modules)
    requests = [
        GenerationRequest(str(index), prompt, SEEDED, "a" if index % 2 else "", adapter if index % 2 else None)
        for index, prompt in enumerate(PROMPTS)
    ]
    served: dict[str, Any] = {"enable_lora": True, "max_loras": 2}
    with running_engine(target, **served) as engine:
        expected = tokens(run_requests(engine, requests))
    with running_engine(target) as engine:
        assert tokens(run(engine, PROMPTS, SEEDED)) != expected
    made, itself = eagle(tmp_path / "eagle", target).config, {"method": "draft_model", "model": str(target)}
    for config in (made, itself):
        drafter = RankDrafter(3)
        with running_engine(target, drafter=drafter, speculative_config=config, **served) as engine:
            assert tokens(run_requests(engine, requests)) == expected
        assert drafter.drafts["all"] > 60
