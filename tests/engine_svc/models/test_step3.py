"""Step 3.5: log-probabilities are those of Transformers' text model, from the files in which it is published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from engine_svc.models.registry import config_for
from quire.errors import StartupError
from tests.support.exact_answers import check_answers_of
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine
from tests.support.staged_executor import StagedExecutor
from tests.support.step3 import TEXT, make_step3, published
from tests.support.tensor_executor import TensorExecutor

# Within a window, longer than one, and several chunks.
PROMPTS = random_prompts(1, 17, 90)
SAMPLING = replace(GREEDY, max_tokens=16, logprobs=4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("step3")
    return folder, make_step3(folder)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"cpu_kernels": "torch"}, {"executor": TensorExecutor(), "tensor_parallel_size": 2},
        {"executor": StagedExecutor(), "pipeline_parallel_size": 2},
    ],
    ids=["native", "torch", "ranks", "stages"],
)  # fmt: skip
def test_log_probabilities(made: tuple[Path, Any], options: dict[str, Any]) -> None:
    folder, model = made
    with running_engine(folder, max_num_batched_tokens=33, cpu_threads=1, **options) as engine:
        found = [run(engine, PROMPTS, SAMPLING) for _ in range(2)]
        assert engine.load().counters.prefix_cache_hits > 0
    for each in found:
        check_answers_of(model, PROMPTS, each, 16)


def test_eight_bits_as_published(tmp_path: Path) -> None:
    """Matrices with a scale for each 128 by 128 values; those of all gates, ups or downs of a layer in one tensor."""
    model = make_step3(tmp_path)
    saved, others = {}, []
    for name, tensor in published(model).items():
        saved[name] = tensor
        if "_proj.weight" not in name or ".g_proj." in name:
            others.append(name.removesuffix(".weight"))
            continue
        scale = tensor.abs().amax((-2, -1), keepdim=True) / 448
        saved[name] = (tensor / scale).to(torch.float8_e4m3fn).contiguous()
        saved[name.replace(".weight", ".weight_scale_inv")] = scale
        tensor.copy_(saved[name].float() * scale)
    save_file({name: tensor.contiguous() for name, tensor in saved.items()}, tmp_path / "model.safetensors")
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["quantization_config"] = {
        "quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic",
        "modules_to_not_convert": others,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with running_engine(tmp_path, quantization="fp8") as engine:
        check_answers_of(model, PROMPTS, run(engine, PROMPTS, SAMPLING), 16)


def test_limits_change_something(made: tuple[Path, Any], tmp_path: Path) -> None:
    """Otherwise, the test above would pass without them."""
    for field in ("swiglu_limits", "swiglu_limits_shared"):
        other = make_step3(tmp_path / field, **{field: None})
        with running_engine(made[0]) as engine, pytest.raises(AssertionError):
            check_answers_of(other, PROMPTS, run(engine, PROMPTS, SAMPLING), 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_head_wise_attn_gate": False}, "without a gate for each head"),
        ({"attention_other_setting": {"num_attention_groups": 1}}, "attention_other_setting has other numbers"),
        (
            {"attention_other_setting": {"num_attention_heads": 7}},
            "expected a divisor of num_heads, 7",
        ),
        ({"swiglu_limits_shared": [7]}, "swiglu_limits_shared has 7.0 for layer 0, which is dense"),
        ({"rope_theta": [5e6, 1e4, 2e4, 1e4, 5e6]}, "rope_theta differs between layers with sliding_attention"),
    ],
    ids=["gate", "heads", "query heads", "limits", "rotation"],
)
def test_what_is_not_supported(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        config_for(json.loads(json.dumps(TEXT | {"architectures": ["Step3p5ForCausalLM"]} | changes)))
