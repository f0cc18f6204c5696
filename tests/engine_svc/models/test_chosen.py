"""Models whose layers choose the tokens that they attend to: the tokens of answers are those of Transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from transformers import GlmMoeDsaConfig, MiniMaxM3VLTextConfig

from engine_svc.attention.native import NativeBackend
from engine_svc.loader.model import build_model
from engine_svc.models.registry import config_for
from engine_svc.parallel.group import ParallelGroups
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.engine_options import engine_options
from tests.support.exact_answers import check_answers
from tests.support.multi_token import add_multi_token_layer
from tests.support.native import needs_native
from tests.support.rank_drafter import NotedGuesses
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine
from tests.support.shared_folder import sharing_engine
from tests.support.staged_executor import StagedExecutor
from tests.support.tensor_executor import TensorExecutor

MOST, ANSWER = 32, 12
PROMPTS = random_prompts(
    3, 25, 30, 50, 90
)  # answers begin, and end, before and beyond the length from which on it chooses
SAMPLING = replace(GREEDY, max_tokens=ANSWER, logprobs=4)
# In the second one, two layers attend to what the first has chosen, and the last one's rows are fewer.
TOPK: dict[str, Any] = {"index_topk": MOST}
SHARING = {"num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"], "mlp_layer_types": None}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "each layer chooses": ("deepseek-v3.2", TOPK | {"kv_lora_rank": 24}),
    "layers share choices": ("glm-5", TOPK | SHARING),
    "gates, sinks and streams": ("hy-v4", TOPK | SHARING), "gates that come with queries": ("axk2", TOPK),
    "heads choose blocks": ("minimax-m3", {}),
}  # fmt: skip


def folder_of(model_folder: ModelFolder, kind: str = "each layer chooses") -> Path:
    family, changes = FAMILIES[kind]
    return model_folder(family, **changes)


def check(folder: Path, num_blocks: int = 256, **options: Any) -> None:
    with running_engine(folder, num_blocks, **options) as engine:
        found = run(engine, PROMPTS, SAMPLING)
    check_answers(folder, PROMPTS, found, ANSWER)


@pytest.mark.parametrize("kind", FAMILIES)
def test_families(model_folder: ModelFolder, kind: str) -> None:
    check(folder_of(model_folder, kind))


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 24}, {"attention_backend": "reference", "max_num_batched_tokens": 40},
        {"num_blocks": 12, "max_num_batched_tokens": 37, "max_model_len": 160},  # sequences are preempted
        {"executor": TensorExecutor, "tensor_parallel_size": 2, "cpu_threads": 1},
        {"executor": StagedExecutor, "pipeline_parallel_size": 2, "cpu_threads": 1},
    ],
    ids=["chunks", "reference", "preemption", "two ranks", "two stages"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["layers share choices", "heads choose blocks"])
def test_ways_to_run(model_folder: ModelFolder, options: dict[str, Any], kind: str) -> None:
    made = {"executor": options["executor"]()} if "executor" in options else {}
    check(folder_of(model_folder, kind), **options | made)


@pytest.mark.parametrize("kind", ["each layer chooses", "heads choose blocks"])
def test_blocks_are_found_again(model_folder: ModelFolder, kind: str) -> None:
    """Keys of indexers are cached, and move to the host and back, together with all else."""
    folder, (prompt,) = folder_of(model_folder, kind), random_prompts(90)
    others = random_prompts(80, 80, 80)
    with running_engine(folder, num_blocks=8, num_host_blocks=40) as engine:
        expected = run(engine, [prompt], SAMPLING)
        for other in others:
            run(engine, [other], SAMPLING)
        again = run(engine, [prompt], SAMPLING)
    check_answers(folder, [prompt] * 2, [*expected, *again], ANSWER)
    assert [usage.cached_prompt_tokens for (output,) in again if (usage := output.usage)] == [80]


def test_blocks_in_a_shared_folder(model_folder: ModelFolder, tmp_path: Path) -> None:
    """Another engine loads the keys of indexers together with all else."""
    folder, (prompt,) = folder_of(model_folder, "layers share choices"), random_prompts(90)
    for hits in (0, 80):
        with sharing_engine(folder, tmp_path / "kv") as engine:
            found = run(engine, [prompt], SAMPLING)
            assert engine.load().counters.external_cache_hits == hits
        check_answers(folder, [prompt], found, ANSWER)


def test_drafts_of_the_models_own_layer(model_folder: ModelFolder, tmp_path: Path) -> None:
    """The layer for multi-token prediction attends to all tokens: its indexer is not read. Drafts are verified."""
    folder = Path(shutil.copytree(folder_of(model_folder), tmp_path / "model"))
    add_multi_token_layer(folder)
    written = load_file(folder / "model.safetensors")
    first, added = "model.layers.0.self_attn.indexer.", "model.layers.3.self_attn.indexer."
    indexer = {name.replace(first, added): each.clone() for name, each in written.items() if name.startswith(first)}
    save_file(written | indexer, folder / "model.safetensors", metadata={"format": "pt"})
    assert indexer and "model.layers.3.eh_proj.weight" in written
    drafter, config = NotedGuesses(), {"method": "mtp", "num_speculative_tokens": 2}
    with running_engine(folder, drafter=drafter, speculative_config=config) as engine:
        found = run(engine, PROMPTS[2:], SAMPLING)
    check_answers(folder_of(model_folder), PROMPTS[2:], found, ANSWER)
    assert len(drafter.guesses) > ANSWER


@needs_native
@pytest.mark.parametrize("kind", ["each layer chooses", "heads choose blocks"])
@pytest.mark.parametrize(("longest", "has_indexer"), [(MOST, False), (MOST + 1, True)])
def test_short_contexts_need_no_indexer(model_folder: ModelFolder, kind: str, longest: int, has_indexer: bool) -> None:
    """Up to that length, models attend to all tokens, by the faster kernels."""
    folder, options = folder_of(model_folder, kind), engine_options(max_model_len=longest)
    built = build_model(folder, options, ParallelGroups(), torch.device("cpu"))
    assert isinstance(built.attention, NativeBackend) is not has_indexer
    assert any(".indexer." in name for name, _ in built.model.named_parameters()) is has_indexer
    with running_engine(folder, max_model_len=longest) as engine:
        found = run(engine, PROMPTS[:1], SAMPLING)
    check_answers(folder, PROMPTS[:1], found, ANSWER)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attention_backend": "native"}, "does not choose the tokens it attends to"),
        ({"batch_invariant": True}, "an attention backend that rounds prompts and single tokens alike"),
        (
            {"executor": TensorExecutor, "tensor_parallel_size": 2, "decode_context_parallel_size": 2},
            f"or lower --max-model-len to {MOST}",
        ),
        (
            {"executor": StagedExecutor, "pipeline_parallel_size": 2, "pipeline_layer_partition": "1,3"},
            "layer 1 of GlmMoeDsaForCausalLM, the first of a stage, attends to tokens that an earlier layer chooses",
        ),
    ],
)
def test_what_is_refused(model_folder: ModelFolder, options: dict[str, Any], words: str) -> None:
    made = {"executor": options["executor"]()} if "executor" in options else {}
    with (
        pytest.raises(StartupError, match=words),
        running_engine(folder_of(model_folder, "layers share choices"), **options | made),
    ):
        pass


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"index_topk_freq": 2}, {"index_topk_freq": 3, "index_skip_topk_offset": 1},
        {"index_topk_pattern": "FSSFSF"}, {"index_topk_freq": 4, "index_skip_topk_offset": 3},
    ],
)  # fmt: skip
def test_which_layers_share_choices(model_folder: ModelFolder, fields: dict[str, Any]) -> None:
    """As Transformers reads the fields of checkpoints that do not name each layer's type."""
    raw = json.loads((folder_of(model_folder, "layers share choices") / "config.json").read_text())
    raw = {name: value for name, value in raw.items() if name != "indexer_types"} | {"num_hidden_layers": 6} | fields
    raw |= {"mlp_layer_types": None, "layer_types": None}
    indexer = config_for(raw).indexer
    assert indexer is not None
    types = GlmMoeDsaConfig(**raw).indexer_types
    assert ["shared" if layer in indexer.shared_layers else "full" for layer in range(6)] == types


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q_lora_rank": None}, "needs a q_lora_rank"), ({"index_head_dim": 4}, "rotated part of index_head_dim is 8"),
        ({"index_n_heads": 0}, "heads is 0"), ({"indexer_types": ["shared", "full", "full"]}, "first layer has no"),
    ],
)  # fmt: skip
def test_what_cannot_be(model_folder: ModelFolder, changes: dict[str, Any], words: str) -> None:
    raw = json.loads((folder_of(model_folder) / "config.json").read_text())
    with pytest.raises(StartupError, match=words):
        config_for(raw | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"index_n_heads": 4}, "index_n_heads is 4; expected one for each key-value head, 2"),
        ({"index_local_blocks": 5}, "index_local_blocks is 5"), ({"index_block_size": 0}, "block_size is 0"),
        ({"index_head_dim": 8}, "rotated part of index_head_dim is 16"),
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types has 'sliding_attention'"),
    ],
)  # fmt: skip
def test_blocks_that_cannot_be(model_folder: ModelFolder, changes: dict[str, Any], words: str) -> None:
    raw = json.loads((folder_of(model_folder, "heads choose blocks") / "config.json").read_text())
    with pytest.raises(StartupError, match=words):
        config_for(raw | changes)


def test_published_fields_of_minimax_m3(model_folder: ModelFolder) -> None:
    """As Transformers reads them."""
    raw = json.loads((folder_of(model_folder, "heads choose blocks") / "config.json").read_text())
    published = {
        "sparse_attention_config": {
            "sparse_num_index_heads": 2, "sparse_index_dim": 32, "sparse_block_size": 4, "sparse_topk_blocks": 6,
            "sparse_local_block": 2, "sparse_attention_freq": [0, 1, 0, 1],
        },
        "moe_layer_freq": [0, 0, 1, 1],
    }  # fmt: skip
    fields = ("layer_types", "mlp_layer_types", *(name for name in raw if name.startswith("index_")))
    raw = {name: value for name, value in raw.items() if name not in fields} | published
    theirs = MiniMaxM3VLTextConfig(**raw).to_dict() | {"architectures": raw["architectures"]}
    assert config_for(raw) == config_for({name: theirs[name] for name in theirs if name not in published})
    assert config_for(raw) != config_for(raw | {"sparse_attention_config": None})


@pytest.mark.parametrize("longest", [MOST, 128])
def test_published_names_of_minimax_m3(model_folder: ModelFolder, tmp_path: Path, longest: int) -> None:
    """Also where indexers are not loaded."""
    folder = Path(shutil.copytree(folder_of(model_folder, "heads choose blocks"), tmp_path / "model"))
    written = load_file(folder / "model.safetensors")
    renamed = {
        name.replace("self_attn.indexer.", "self_attn.index_").replace(
            "layers.1.mlp", "layers.1.block_sparse_moe"
        ): each
        for name, each in written.items()
    }
    renamed["mtp.layers.0.norm.weight"] = torch.ones(64)
    assert len(renamed.keys() - written.keys()) > 8
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    prompts = [prompt for prompt in PROMPTS if len(prompt) + ANSWER <= longest]
    with running_engine(folder, max_model_len=longest) as engine:
        found = run(engine, prompts, SAMPLING)
    check_answers(folder_of(model_folder, "heads choose blocks"), prompts, found, ANSWER)


def test_hunyuan_4_may_leave_fields_out(model_folder: ModelFolder) -> None:
    """Then it is what Transformers' configuration is: every fourth layer has an indexer, and the first."""
    raw = json.loads((model_folder("hy-v4", num_hidden_layers=7, indexer_types=None) / "config.json").read_text())
    left_out = ("indexer_types", "mlp_layer_types", "n_group", "topk_group", "hc_magnitude", "rope_interleave")
    fewer = {name: value for name, value in raw.items() if name not in left_out}
    assert config_for(fewer) == config_for(raw)
    assert (indexer := config_for(fewer).indexer) and indexer.shared_layers == {2, 3, 4, 6}
