"""Gemma 4: configurations as published, layers that need only the rows that are sampled from, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from engine_svc.models.config import LayerHeads
from engine_svc.models.registry import config_for
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.models.test_exactness import check_close
from tests.support.exact_answers import check_answers
from tests.support.pooled_models import runner_of
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine
from tests.support.staged_executor import StagedExecutor

PROMPTS, SAMPLING = random_prompts(1, 20, 45), replace(GREEDY, max_tokens=24)


def published(folder: Path, to: Path, changes: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    """A copy with the configuration changed as published ones are, and further tensors."""
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    del config["per_layer_config"]
    (to / "config.json").write_text(json.dumps(config | changes))
    found = load_file(to / "model.safetensors")
    save_file(found | tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


def check(folder: Path, like: Path, **options: Any) -> None:
    with running_engine(folder, **options) as engine:
        found = run(engine, PROMPTS, replace(SAMPLING, logprobs=4))
    check_answers(like, PROMPTS, found, SAMPLING.max_tokens or 0)


def test_heads_in_fields_of_their_own(model_folder: ModelFolder, tmp_path: Path) -> None:
    folder = model_folder("gemma4")
    fields = {"global_head_dim": 32, "num_global_key_value_heads": 1}
    check(published(folder, tmp_path / "model", fields, {}), folder)


def test_keys_and_values_of_layers_that_borrow_them_are_not_read(model_folder: ModelFolder, tmp_path: Path) -> None:
    folder = model_folder("gemma4-small")
    unused = {f"model.layers.4.self_attn.{part}.weight": torch.ones(1) for part in ("k_proj", "v_proj", "k_norm")}
    check(published(folder, tmp_path / "model", {"global_head_dim": 32}, unused), folder)


def test_layers_of_a_kind_have_the_same_heads(model_folder: ModelFolder) -> None:
    config = json.loads((model_folder("gemma4") / "config.json").read_text())
    found = config_for(config)
    assert (found.num_kv_heads, found.head_dim, found.local_heads) == (1, 32, LayerHeads(4, 16, found.num_heads))
    with pytest.raises(StartupError, match="per_layer_config differs"):
        config_for(config | {"per_layer_config": {"1": {"head_dim": 32}, "3": {"head_dim": 64}}})


def test_encoders_are_refused(model_folder: ModelFolder) -> None:
    config = json.loads((model_folder("gemma4") / "config.json").read_text())
    with pytest.raises(StartupError, match="use_bidirectional_attention is 'all'"):
        config_for(config | {"use_bidirectional_attention": "all"})


def test_pooling_is_refused(model_folder: ModelFolder) -> None:
    with pytest.raises(StartupError, match="which is not supported for pooling"):
        runner_of(model_folder("gemma4"))


def test_a_pipeline_is_refused_where_layers_need_more_than_hidden_states(model_folder: ModelFolder) -> None:
    with (
        pytest.raises(StartupError, match="--pipeline-parallel-size 2: layers of Gemma4ForCausalLM need more"),
        running_engine(model_folder("gemma4-small"), executor=StagedExecutor(), pipeline_parallel_size=2),
    ):
        pass


def test_layers_that_borrow_compute_only_rows_that_are_sampled_from(
    model_folder: ModelFolder, computed: list[int]
) -> None:
    with running_engine(model_folder("gemma4-small"), enforce_eager=True) as engine:
        computed.clear()
        run(engine, random_prompts(9, 7), replace(GREEDY, max_tokens=1))
    assert computed == [16, 16, 16, 2, 2, 2]


@pytest.mark.parametrize("family", ["gemma4-moe", "gemma4-small"])
@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"dtype": "bfloat16"}, 0.12),
        ({"dtype": "float16"}, 0.02),
        ({"quantization": "int8"}, 0.3),
        ({"kv_cache_dtype": "fp8"}, 0.2),
        ({"kv_cache_dtype": "fp8", "calculate_kv_scales": True}, 0.2),
        ({"block_size": 32}, 1e-4),
    ],
)
def test_less_precision_is_close(
    model_folder: ModelFolder, tmp_path: Path, family: str, options: dict[str, Any], tolerance: float
) -> None:
    """Scores, which are not scaled, are made milder: rounding would change which single key a query sees."""

    def milder(name: str, **changes: Any) -> Path:
        experts = {"top_k_experts": 6} if name == "gemma4-moe" else {}  # all of them, for the same reason
        folder = shutil.copytree(model_folder(name, **changes, **experts), tmp_path / "model")
        found = load_file(folder / "model.safetensors")
        for tensor, values in found.items():
            if tensor.endswith("q_norm.weight"):
                values.mul_(0.2)
        save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    check_close(milder, family, options, tolerance)
