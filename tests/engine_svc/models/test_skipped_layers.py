"""Layers whose keys and values stay in the model's dtype while others are cached in 8 bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace

from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.native import AVAILABLE
from tests.support.rounding_attention import register_rounding
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine, spec_of, tokens
from tests.support.tiny_models import reference_tokens

PROMPTS, ANSWER = random_prompts(60, 55, seed=2), 20
SAMPLING = replace(GREEDY, max_tokens=ANSWER)
BACKENDS = ("native", "cpu") if AVAILABLE else ("cpu", "reference")


@pytest.mark.parametrize(
    ("family", "names", "layers"),
    [
        ("llama", ("0", "2"), {0, 2}),
        ("gemma3", ("sliding_window",), {0, 2}),
        # Heads differ as well, and the last layers borrow keys and values: 3, 4 and 5 those of 1, 1 and 2.
        ("gemma4-small", ("sliding_window",), {0, 1, 3, 4}),
        ("gemma4-small", ("2",), {2, 5}),
    ],
)
def test_tokens(model_folder: ModelFolder, family: str, names: tuple[str, ...], layers: set[int]) -> None:
    """Equals Transformers with an attention that rounds keys and values of the other layers; also in host memory."""
    folder = model_folder(family)
    implementation = register_rounding(torch.float8_e4m3fn, layers)
    expected = reference_tokens(folder, PROMPTS, ANSWER, attn_implementation=implementation)
    register_rounding(torch.float8_e4m3fn)
    assert expected != reference_tokens(folder, PROMPTS, ANSWER, attn_implementation=implementation)
    for backend in BACKENDS:
        options: dict[str, Any] = {
            "kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": names, "attention_backend": backend,
        }  # fmt: skip
        with running_engine(folder, **options) as engine:
            assert tokens(run(engine, PROMPTS, SAMPLING)) == expected
    with running_engine(folder, num_blocks=16, num_host_blocks=60, block_size=16, max_model_len=128, **options) as few:
        for _ in range(2):
            outputs = [run(few, [prompt], SAMPLING)[0] for prompt in PROMPTS]
            assert [tokens([each])[0] for each in outputs] == expected
    assert [output.usage.cached_prompt_tokens for (output,) in outputs if output.usage] == [48, 48]  # from the host


def test_blocks_are_smaller_than_without(model_folder: ModelFolder) -> None:
    """Float32, of 3 layers: one that skips takes as much of a block as four that do not."""
    folder, options = model_folder("llama"), {"kv_cache_dtype": "fp8"}
    sizes = [
        spec_of(folder, **options, kv_cache_dtype_skip_layers=names).bytes_per_block
        for names in ((), ("0",), ("0", "2"), ("0", "1", "2"))
    ]
    assert [size / sizes[0] for size in sizes] == [1, 4 / 3, 4 / 3, 4]


def test_scales_are_those_of_layers_that_round(model_folder: ModelFolder) -> None:
    """With all layers skipped, calculated scales change nothing."""
    folder = model_folder("llama")
    with running_engine(folder) as engine:
        expected = tokens(run(engine, PROMPTS, SAMPLING))
    options: dict[str, Any] = {"kv_cache_dtype": "fp8", "calculate_kv_scales": True}
    with running_engine(folder, **options, kv_cache_dtype_skip_layers=("0", "1", "2")) as engine:
        assert tokens(run(engine, PROMPTS, SAMPLING)) == expected


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("llama", {"kv_cache_dtype_skip_layers": ("0",)}, "applies only to an 8-bit KV cache"),
        ("llama", {"kv_cache_dtype_skip_layers": ("3",), "kv_cache_dtype": "fp8"}, "a number below 3"),
        ("qwen3-next", {"kv_cache_dtype_skip_layers": ("0",), "kv_cache_dtype": "fp8"}, "keys and values of its own"),
        ("deepseek-v3", {"kv_cache_dtype_skip_layers": ("0",), "kv_cache_dtype": "fp8"}, "all of its layers"),
        (
            "llama", {"kv_cache_dtype_skip_layers": ("0",), "kv_cache_dtype": "fp8", "model_impl": "transformers"},
            "does not support --kv-cache-dtype-skip-layers",
        ),
    ],
)  # fmt: skip
def test_refused(model_folder: ModelFolder, family: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(StartupError, match=message), running_engine(model_folder(family), **options):
        pass
