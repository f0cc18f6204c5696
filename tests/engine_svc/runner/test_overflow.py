"""A request whose values overflow, as they may in float16, fails alone and leaves nothing that affects others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_svc.core.engine import Engine
from engine_svc.requests.request import GenerationRequest
from quire.errors import QuireError
from quire.sampling import SamplingParameters
from tests.support.native import needs_native
from tests.support.run_engine import random_prompts, run, running_engine, tokens
from tests.support.tiny_models import VOCAB_SIZE, make_model

pytestmark = pytest.mark.slow

BAD = VOCAB_SIZE - 1
PROMPTS = [[token % BAD for token in prompt] for prompt in random_prompts(1, 9, 20, 33, 50, seed=8)]
# Other requests do not sample the bad token by themselves.
INNOCENT = SamplingParameters(temperature=0.0, max_tokens=24, logit_bias=((BAD, -100.0),))
OverflowingModel = Callable[..., Path]


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> OverflowingModel:
    """Returns a function that makes a family's model in which the embedding of the token BAD is infinite."""
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = make_model(tmp_path_factory.mktemp(family), family, tie_word_embeddings=False)
            file = made[family] / "model.safetensors"
            weights = load_file(file)
            weights["model.embed_tokens.weight"][BAD] = torch.inf
            save_file(weights, file, {"format": "pt"})
        return made[family]

    return get


def errors(engine: Engine, prompts: list[list[int]], sampling: SamplingParameters) -> list[QuireError | None]:
    """Runs the prompts and returns each request's error, or None."""
    for key, prompt in enumerate(prompts):
        engine.add(10**9 + key, GenerationRequest("r", prompt, sampling))
    found: dict[int, QuireError | None] = {}
    while engine.has_work:
        found |= {delta.key: delta.error for delta in engine.step() if delta.is_final}
        engine.check()
    return [found[10**9 + key] for key in range(len(prompts))]


def bad_prompts() -> list[list[int]]:
    """Puts the bad token first, last, and in the middle of prompts of one step and of several."""
    return [[BAD], [BAD, *PROMPTS[3]], [*PROMPTS[2], BAD], [*PROMPTS[4], BAD, *PROMPTS[4]]]


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("llama", {"kv_cache_dtype": "fp8_e5m2"}),
        ("llama", {"kv_cache_dtype": "fp8_e4m3"}),
        ("llama", {"kv_cache_dtype": "fp8_e5m2", "attention_backend": "cpu"}),
        ("llama", {"attention_backend": "reference"}),
        # In 16 bits, rounding depends on what is found in the cache.
        pytest.param("llama", {"dtype": "bfloat16", "enable_prefix_caching": False}, marks=needs_native),
        ("gemma2", {}),  # layers with a window and without
        ("mixtral", {}),
        ("deepseek-v3", {}),
        ("jamba", {}),  # recurrent layers
        ("bamba", {}),
    ],
)
def test_an_overflow_is_its_requests_own(overflowing: OverflowingModel, family: str, options: dict[str, Any]) -> None:
    """Whether it would have had answers or not."""
    with running_engine(overflowing(family), 40, max_num_batched_tokens=32, **options) as engine:
        expected = tokens(run(engine, PROMPTS, INNOCENT))
        for max_tokens in (30, 0, 30):
            for error in errors(engine, bad_prompts(), SamplingParameters(temperature=0.0, max_tokens=max_tokens)):
                assert error is not None
                assert error.reason == "REQUEST_FAULT"
                assert "overflowed" in error.message
            # In blocks that the bad requests used, and in fresh ones.
            assert tokens(run(engine, PROMPTS, INNOCENT)) == expected


def test_what_was_computed_after_an_overflow_cannot_be_found(overflowing: OverflowingModel) -> None:
    with running_engine(overflowing("llama"), max_num_batched_tokens=32) as engine:
        prompt = [*PROMPTS[4][:40], BAD, *PROMPTS[4]]
        assert errors(engine, [prompt], INNOCENT)[0] is not None
        usage = run(engine, [prompt[:40]], INNOCENT)[0][0].usage
        assert usage is not None
        assert usage.cached_prompt_tokens == 32  # from the first step, before the bad token
        assert sum(len(hashes) for hashes in engine.cache_contents().hashes.values()) == (40 + 23) // 16
