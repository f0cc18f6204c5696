"""Families whose own code is only in their checkpoints' repositories, of which nothing runs."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from engine_svc.loader.model import build_model
from engine_svc.models.alibi import alibi_slopes
from engine_svc.models.registry import config_for
from engine_svc.parallel.group import ParallelGroups
from engine_svc.parallel.layout import ParallelLayout
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.engine_options import engine_options
from tests.support.exact_answers import check_answers, check_answers_of
from tests.support.remote_code import FAMILIES, RemoteFamily, write_family
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine
from tests.support.tiny_models import load_reference

PROMPTS = random_prompts(1, 20, 45)
ANSWER = 12
SAMPLING = replace(GREEDY, max_tokens=ANSWER, logprobs=4)
SHAPE: dict[str, Any] = {
    "vocab_size": 125_696, "hidden_size": 4096, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 32, "max_position_embeddings": 256,
}  # fmt: skip
# The last layer mixes, too, and layer 2 is kept twice.
SOLAR: dict[str, Any] = {
    "architectures": ["SolarForCausalLM"], "model_type": "solar", "sliding_window": 8, "bskcn_1": [1, 2],
    "bskcn_2": [2], "bskcn_3": [3, 5], "bskcn_4": [4], "bskcn_tv": [0.9, 0.8],
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_families(tmp_path: Path, name: str) -> None:
    folder, same = write_family(FAMILIES[name], tmp_path)
    with running_engine(folder) as engine:
        found = run(engine, PROMPTS, SAMPLING)
    check_answers(same, PROMPTS, found, ANSWER)


def test_baichuan_2_13b(tmp_path: Path) -> None:
    """Transformers' Llama becomes it with hardly any rotation, and with slopes in its mask."""
    family = RemoteFamily(
        "BaichuanForCausalLM", "llama", {
            "vocab_size": 125_696, "hidden_size": 32, "num_key_value_heads": 4, "num_hidden_layers": 2,
            "tie_word_embeddings": False, "initializer_range": 1.0,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 1e12},
        }, {"max_position_embeddings": "model_max_length"}, {"rope_parameters": None},
        ((r"\.qkv\.", ".W_pack."),), groups=1, head_norm=1,
    )  # fmt: skip
    folder, same = write_family(family, tmp_path)
    with running_engine(folder) as engine:
        found = run(engine, PROMPTS[:2], SAMPLING)
    model = load_reference(same)

    def sloped(ids: torch.Tensor) -> Any:
        places = torch.arange(ids.shape[1])
        mask = torch.tensor(alibi_slopes(4))[:, None, None] * (places - places[:, None])
        return model(ids, attention_mask=mask.masked_fill(places > places[:, None], float("-inf"))[None])

    check_answers_of(sloped, PROMPTS[:2], found, ANSWER)


def test_baichuan_2_7b() -> None:
    found = config_for(SHAPE | {"architectures": ["BaichuanForCausalLM"]})
    assert (found.attention_slopes, found.no_rope_layers, found.head_norm) == ((), frozenset(), "rows")


def test_which_layers_of_deepseek_moe_have_experts() -> None:
    experts = {
        "architectures": ["DeepseekForCausalLM"], "num_hidden_layers": 6, "n_routed_experts": 8,
        "first_k_dense_replace": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_layer_freq": 2,
        "norm_topk_prob": False,
    }  # fmt: skip
    found = config_for(SHAPE | experts).moe
    assert [index for index, moe in enumerate(found) if moe is not None] == [2, 4]
    assert all(moe is None or (not moe.renormalize and moe.shared_size is None) for moe in found)


@pytest.mark.parametrize(
    ("fields", "longest"), [({}, 128), ({"use_dynamic_ntk": False}, 128), ({"use_logn_attn": False}, 128),
                            ({"use_dynamic_ntk": False, "use_logn_attn": False}, 256)],
)  # fmt: skip
def test_texts_of_qwen_1_are_no_longer_than_in_training(fields: dict[str, bool], longest: int) -> None:
    trained = {"seq_length": 128, "use_dynamic_ntk": True, "use_logn_attn": True}
    found = config_for(SHAPE | trained | fields | {"architectures": ["QWenLMHeadModel"]})
    assert (found.max_position_embeddings, found.intermediate_size) == (longest, 48)


def test_ling_3_as_published(model_folder: ModelFolder, tmp_path: Path) -> None:
    folder = shutil.copytree(model_folder("ling-3"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    fields = {
        "num_expert_group": "n_group", "num_experts_per_token": "num_experts_per_tok",
        "moe_renormalize": "norm_topk_prob", "model_max_length": "max_position_embeddings",
    }  # fmt: skip
    own = {fields.get(name, name): value for name, value in config.items() if name != "linear_head_dim"}
    own |= {"architectures": ["BailingMoeV3ForCausalLM"], "head_dim": 16, "q_lora_rank": None, "use_mla_nope": False}
    (folder / "config.json").write_text(json.dumps(own))
    with running_engine(folder) as engine:
        found = run(engine, PROMPTS, SAMPLING)
    check_answers(model_folder("ling-3"), PROMPTS, found, ANSWER)
    latent = config_for(own | {"q_lora_rank": 32}).latent
    assert latent is not None and latent.query_rank == 32
    with pytest.raises(StartupError, match="use_mla_nope"):
        config_for(own | {"use_mla_nope": True})


@pytest.mark.parametrize("budget", [512, 16])
def test_solar(model_folder: ModelFolder, tmp_path: Path, budget: int) -> None:
    """Transformers' Llama becomes it with hooks that keep and mix what comes to its layers."""
    same = model_folder("llama", num_hidden_layers=6, tie_word_embeddings=False, initializer_range=0.2)
    folder = shutil.copytree(same, tmp_path / "model")
    own = json.loads((folder / "config.json").read_text()) | SOLAR
    (folder / "config.json").write_text(json.dumps(own))
    with running_engine(folder, max_num_batched_tokens=budget) as engine:
        found = run(engine, PROMPTS, SAMPLING)
    model, kept = copy.deepcopy(load_reference(same)), dict[str, torch.Tensor]()

    def mixed(layer: int, hidden: torch.Tensor) -> torch.Tensor:
        kept.update({name: hidden for name in ("bskcn_1", "bskcn_2") if layer in SOLAR[name]})
        for name, blended in (("bskcn_1", "bskcn_3"), ("bskcn_2", "bskcn_4")):
            if layer in SOLAR[blended]:
                hidden = 0.8 * kept[name] + 0.2 * hidden
        return hidden

    for index, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(lambda _, args, index=index: (mixed(index, args[0]), *args[1:]))
    check_answers_of(model, PROMPTS, found, ANSWER)
    stages = ParallelGroups(ParallelLayout(pipeline=2), 0)
    with pytest.raises(StartupError, match="--pipeline-parallel-size 2: layers of SolarForCausalLM need more"):
        build_model(folder, engine_options(pipeline_parallel_size=2), stages, torch.device("cpu"))


class ClampedSilu(torch.nn.Module):
    """In place of an activation of Transformers, which multiplies its result with the other half."""

    def __mul__(self, up: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self.gate.clamp(max=0.3)) * up.clamp(-0.3, 0.3)

    def forward(self, gate: torch.Tensor) -> ClampedSilu:
        self.gate = gate
        return self


def test_k_exaone_2(model_folder: ModelFolder, tmp_path: Path) -> None:
    """Windows differ between layers, and so do limits of activations."""
    folder, windows = shutil.copytree(model_folder("exaone-moe"), tmp_path / "model"), [9, 16, 8, 0]
    own = json.loads((folder / "config.json").read_text())
    own |= {"sliding_window": None, "sliding_windows": windows, "swiglu_limits": [0.0, 0.3, 0.0, 0.3]}
    (folder / "config.json").write_text(json.dumps(own))
    with running_engine(folder) as engine:
        found = run(engine, PROMPTS, SAMPLING)
    model = copy.deepcopy(load_reference(model_folder("exaone-moe")))
    for index in (1, 3):
        mlp = model.model.layers[index].mlp
        mlp.experts.act_fn = mlp.shared_experts.act_fn = ClampedSilu()

    def with_window(window: int, hidden: torch.Tensor, given: dict[str, Any]) -> dict[str, Any]:
        places = torch.arange(hidden.shape[1])
        distances = places[:, None] - places
        return given | {"attention_mask": ((distances >= 0) & (distances < window))[None, None]}

    for layer, window in zip(model.model.layers[:3], windows, strict=False):
        layer.register_forward_pre_hook(
            lambda _, args, given, window=window: (args, with_window(window, args[0], given)), with_kwargs=True
        )
    check_answers_of(model, PROMPTS, found, ANSWER)
    with pytest.raises(StartupError, match="only layers with experts may be clipped"):
        config_for(own | {"swiglu_limits": [0.3, 0.3, 0.0, 0.3]})


@pytest.mark.parametrize(
    ("architecture", "fields", "problem"),
    [
        ("ChatGLMModel", {}, "ChatGLM 1 is not supported"),
        ("DeepseekForCausalLM", {"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid'; expected softmax"),
        ("QWenLMHeadModel", {"visual": {"layers": 48}}, "Qwen-VL 1 is not supported"),
        ("PanguEmbeddedForCausalLM", {"param_sink_number": 128}, "param_sink_number 128"),
        ("ChatGLMModel", {"multi_query_attention": True, "rmsnorm": False}, "rmsnorm False; supported is True"),
        ("MiniCPMForCausalLM", {"sparse_config": {"topk": 64}}, "sparse_config .* --hf-overrides"),
        ("SolarForCausalLM", SOLAR | {"bskcn_4": [3]}, r"layer 3 in bskcn_4"),
        ("SolarForCausalLM", SOLAR | {"bskcn_1": [4]}, r"layer 3 in bskcn_3"),
        ("LlamaForCausalLM", {"sliding_windows": [0, 16, 32]}, "lists of windows are not supported for Llama"),
    ],
)
def test_what_is_refused(architecture: str, fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(StartupError, match=problem):
        config_for(SHAPE | fields | {"architectures": [architecture]})
