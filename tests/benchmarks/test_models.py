"""Model shapes for benchmarks match the sizes of the models they are named after, and small versions of them run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from benchmarks.engine_alone import EngineAlone
from benchmarks.floors import step_cost, weights
from benchmarks.models import SHAPES, build_config
from benchmarks.rates import Form
from engine_svc.config_formats.registry import read_model_config
from engine_svc.models.config import ModelConfig
from engine_svc.models.registry import config_for
from quire.options.model_form import ModelFormOptions

# Parameters in 10^9, in total and those used per token, as given on the models' own pages; for the 8B and 30B models
# including embeddings and output layers.
SIZES = {
    "llama-3.1-8b": (8.03, 7.5), "qwen3-30b-a3b": (30.5, 3.0), "deepseek-v2-lite": (15.7, 2.45),
    "gpt-oss-20b": (20.9, 3.6),
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "deepseek-v2-lite": {
        "kv_lora_rank": 64, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 8,
        "moe_intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4,
    },
    "gpt-oss-20b": {"num_local_experts": 4, "head_dim": 16, "num_attention_heads": 8, "num_key_value_heads": 2},
    "gpt-oss-20b-mxfp4": {"num_local_experts": 4, "head_dim": 16, "num_attention_heads": 8, "num_key_value_heads": 2},
    "olmo-hybrid-7b": {
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
    },
    "mamba2-7b": {"head_dim": 16, "num_heads": 8, "n_groups": 2},
}  # fmt: skip


def config_of(shape: str, folder: Path) -> ModelConfig:
    build_config(shape, folder)
    return config_for(read_model_config(folder, ModelFormOptions()))


@pytest.mark.parametrize("shape", SIZES)
def test_sizes(shape: str, tmp_path: Path) -> None:
    config = config_of(shape, tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    count, (total, active) = sum(each.numel() for each in model.parameters()), SIZES[shape]
    assert count / 1e9 == pytest.approx(total, rel=0.005)
    read, used = weights(config, 100_000)  # with this many tokens, all experts are chosen
    outside = (1 if config.tie_word_embeddings else 2) * config.vocab_size * config.hidden_size
    assert read + outside == pytest.approx(count, rel=0.005)  # except norms and biases
    assert (used + config.vocab_size * config.hidden_size) / 1e9 == pytest.approx(active, rel=0.03)


@pytest.mark.parametrize(("shape", "total"), [("olmo-hybrid-7b", 7.43), ("mamba2-7b", 7.285)])
def test_sizes_of_recurrent_shapes(shape: str, total: float, tmp_path: Path) -> None:
    build_config(shape, tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    assert sum(each.numel() for each in model.parameters()) / 1e9 == pytest.approx(total, rel=0.005)


def test_what_a_step_reads_of_its_context(tmp_path: Path) -> None:
    form = Form("auto", "bfloat16", None)

    def more(shape: str) -> float:
        config = config_of(shape, tmp_path / shape)
        first, second = (step_cost(config, 4, 4, context, form).bytes for context in (1000, 2000))
        return (second - first) / 4 / 1000

    assert more("llama-3.1-8b") == 32 * 2 * 8 * 128 * 2
    assert more("deepseek-v2-lite") == 27 * (512 + 64) * 2  # one vector for all heads
    assert more("gpt-oss-20b") == 12 * 2 * 8 * 64 * 2  # the other layers see 128 tokens


def test_what_a_prompt_computes(tmp_path: Path) -> None:
    """In the last layer, all but keys and values is computed for one token of a prompt."""
    config, form = config_of("llama-3.1-8b", tmp_path), Form("auto", "bfloat16", None)
    one, two = (step_cost(config, tokens, 1, 0, form).operations for tokens in (1, 2))
    _, used = weights(config, 1)
    assert one == 2 * (used + config.vocab_size * config.hidden_size)
    assert two - one == 2 * (used * 31 / 32 + config.hidden_size * 2 * 8 * 128)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SMALL)
def test_small_ones_run(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2}
    common |= {"intermediate_size": 64} if "intermediate_size" in SHAPES[shape] else {}
    small = SHAPES[shape] | common | SMALL[shape]
    monkeypatch.setitem(SHAPES, "small", small)
    build_config("small", tmp_path)
    with EngineAlone(str(tmp_path), load_format="dummy", device="cpu", max_model_len=256) as engine:
        assert engine.prefill_seconds(140) > 0  # more than the window
        assert engine.decode_seconds(3, 8, 2) > 0
