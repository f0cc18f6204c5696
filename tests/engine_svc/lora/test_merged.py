"""Greedy float32 output with an adapter equals that of the base with the adapter merged into its weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from engine_svc.adapters.targets import TargetModules
from tests.support.lora import adapter_executor, merge, modules_of, write_adapter
from tests.support.remote_code import FAMILIES, write_family
from tests.support.run_engine import random_prompts
from tests.support.tiny_models import make_model

PROMPTS = random_prompts(3, 7, 20)
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Case:
    """Which modules the adapter changes, by the end of their names."""

    names: tuple[str, ...]
    changes: dict[str, Any] = field(default_factory=dict)  # to the family's configuration
    size: float = 1.0  # scale of the adapter's changes
    inputs_first: bool = False  # whether the base stores weights as [inputs, outputs]


CASES = {
    "llama": Case((*LINEAR, "lm_head"), {"tie_word_embeddings": False}),
    "gemma2": Case(LINEAR, {"tie_word_embeddings": False}),
    "phi3": Case(("qkv_proj", "o_proj", "gate_up_proj", "down_proj")), "qwen3": Case(("k_proj", "v_proj", "up_proj")),
    "mixtral": Case(("w1", "w2", "w3", "gate")), "qwen3-moe": Case((*LINEAR, "gate")),
    "codegen": Case(("qkv_proj", "out_proj", "fc_in", "fc_out", "lm_head"), size=0.3),
    "falcon-40b": Case(("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")),
    "gpt-neox": Case(("query_key_value", "dense", "dense_4h_to_h", "embed_out")),
    "gpt-neo": Case(("q_proj", "out_proj", "c_fc", "c_proj")),
    "gpt2": Case(("c_attn", "c_proj", "c_fc"), inputs_first=True),
    "starcoder2": Case(("q_proj", "o_proj", "c_fc", "c_proj")),
    "opt-projected": Case(("k_proj", "out_proj", "fc1", "fc2", "project_in")),
    "deepseek-v2": Case(("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "up_proj", "down_proj")),
    "deepseek-v2-plain": Case(("q_proj", "kv_b_proj")),
    "recurrent-gemma": Case(("linear_x", "linear_y", "linear_out", "q_proj", "o_proj", "up_proj")),
    "lfm3": Case(("in_proj", "q_proj", "gate_proj", "w1", "w2")),
    "mamba2": Case(("in_proj", "out_proj", "embeddings")),
    "chatglm": Case(("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h", "word_embeddings")),
    "gemma3n": Case(("linear_left", "modality_router", "per_layer_input_gate", "per_layer_model_projection")),
    "gemma": Case(("embed_tokens",), {"tie_word_embeddings": False}),
    "qwen2": Case(("embed_tokens", "lm_head"), {"tie_word_embeddings": False}),
}  # fmt: skip


@pytest.mark.parametrize("family", CASES)
def test_families(tmp_path: Path, family: str) -> None:
    case = CASES[family]
    if family in FAMILIES:
        base, _ = write_family(FAMILIES[family], tmp_path / "base")
    else:
        base = make_model(tmp_path / "base", family, **case.changes)
    with adapter_executor(base) as served:
        modules = modules_of(base, served.spec.adapter_modules, case.names)
        adapters = [
            write_adapter(tmp_path / str(rank), modules, rank=rank, seed=rank, size=case.size) for rank in (4, 9)
        ]
        assert set(served.read(*(each.folder for each in adapters)).values()) == {""}
        served.place({1: adapters[0].folder, 3: adapters[1].folder})
        slots = [1, 0, 3]
        found = served.generate(PROMPTS, slots)
        plain = served.generate(PROMPTS, [0, 0, 0])
    for index, adapter in ((0, adapters[0]), (2, adapters[1])):
        whole = merge(base, adapter, tmp_path / f"merged-{index}", inputs_first=case.inputs_first)
        with adapter_executor(whole, enable_lora=False) as merged:
            assert found[index] == merged.generate([PROMPTS[index]], [0])[0]
        assert found[index] != plain[index]
    assert found[1] == plain[1]


@pytest.mark.parametrize(("family", "ends"), [("llama", ("qkv_proj", "mlp.down_proj")), ("qwen3-moe", ("o_proj",))])
def test_only_target_modules_are_changed(tmp_path: Path, family: str, ends: tuple[str, ...]) -> None:
    base = make_model(tmp_path / "base", family)
    with adapter_executor(base) as served:
        modules = modules_of(base, served.spec.adapter_modules, LINEAR)
    adapter = write_adapter(tmp_path / "adapter", modules)
    wanted = {name: delta for name, delta in adapter.deltas.items() if TargetModules(ends).have(name)}
    assert 0 < len(wanted) < len(adapter.deltas)
    with adapter_executor(base, lora_target_modules=ends) as served:
        assert not any("gate_proj" in name for name in served.spec.adapter_modules)
        served.read(adapter.folder)
        served.place({1: adapter.folder})
        found = served.generate(PROMPTS, [1, 1, 1])
    with adapter_executor(
        merge(base, replace(adapter, deltas=wanted), tmp_path / "merged"), enable_lora=False
    ) as merged:
        assert found == merged.generate(PROMPTS, [0, 0, 0])
