"""MiMo V2 Flash: checkpoints as published, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from safetensors.torch import load_file

from engine_svc.models.config import LayerHeads
from engine_svc.models.registry import config_for
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.exact_answers import check_answers
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine

# What the published configuration has of layers with a window.
PUBLISHED: dict[str, Any] = {
    "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 32, "swa_v_head_dim": 16,
    "hybrid_layer_pattern": [0, 1, 1, 0], "moe_layer_freq": [0, 1, 1, 1], "sliding_window_size": 15,
    "rope_theta": 5e6, "swa_rope_theta": 100.0, "partial_rotary_factor": 0.5, "routed_scaling_factor": None,
    "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False, "layernorm_epsilon": 1e-5,
}  # fmt: skip


def published(config: dict[str, Any]) -> dict[str, Any]:
    others = ("layer_types", "mlp_layer_types", "rope_parameters", "sliding_window", "rms_norm_eps")
    return {name: value for name, value in config.items() if name not in others} | PUBLISHED


def test_a_checkpoint_as_published(model_folder: ModelFolder, tmp_path: Path) -> None:
    folder, to = model_folder("mimo"), tmp_path / "model"
    shutil.copytree(folder, to)
    (to / "config.json").write_text(json.dumps(published(json.loads((folder / "config.json").read_text()))))
    assert "model.layers.1.self_attn.attention_sink_bias" in load_file(folder / "model.safetensors")
    prompts = random_prompts(1, 20, 45)
    with running_engine(to) as engine:
        found = run(engine, prompts, replace(GREEDY, max_tokens=24, logprobs=4))
    check_answers(folder, prompts, found, 24)


def test_what_a_configuration_leaves_out(model_folder: ModelFolder) -> None:
    given = json.loads((model_folder("mimo") / "config.json").read_text())
    short = {name: given[name] for name in ("architectures", "vocab_size", "hidden_size", "intermediate_size")}
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    found = config_for(
        {**short, **experts, "num_hidden_layers": 13, "num_attention_heads": 8, "max_position_embeddings": 512}
    )
    assert [index for index, window in enumerate(found.sliding_windows) if window is None] == [0, 5, 11]
    assert [index for index, moe in enumerate(found.moe) if moe is None] == [0]
    assert (found.head_dim, found.value_dim, found.rotary_dim, found.num_kv_heads) == (192, 128, 64, 4)
    assert (found.local_heads, found.sliding_windows[1]) == (LayerHeads(8, 192, 8), 129)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"swa_head_dim": 64}, "swa_head_dim differs from head_dim"),
        ({"swa_num_attention_heads": 8}, "swa_num_attention_heads differs from num_attention_heads"),
        ({"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias, which is not supported"),
    ],
)
def test_other_layers_are_refused(model_folder: ModelFolder, changes: dict[str, Any], problem: str) -> None:
    given = json.loads((model_folder("mimo") / "config.json").read_text())
    with pytest.raises(StartupError, match=problem):
        config_for(published(given) | changes)
