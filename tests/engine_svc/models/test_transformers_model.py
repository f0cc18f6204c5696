"""Which models run by Transformers' own code, and through which interface; `test_all_models.py` covers all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from engine_svc.models.paged_interface import WATCHED, Heads, PagedInterface, _mark
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.exact_answers import check_answers
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine


class Layer(torch.nn.Module):
    """The module that attends."""


def watched(*calls: tuple[int, int, int, int], mask: torch.Tensor | None = None, **named: Any) -> PagedInterface:
    """Returns an interface that has watched calls with the given (query heads, key heads, key size, value size)."""
    interface = PagedInterface()
    interface.watch()
    for heads, kv_heads, keys, values in calls:
        shapes = (heads, keys), (kv_heads, keys), (kv_heads, values)
        query, key, value = (torch.zeros(1, count, 2, size) for count, size in shapes)
        output, _ = ALL_ATTENTION_FUNCTIONS[WATCHED](Layer(), query, key, value, mask, **named)
        assert output.shape == (1, 2, heads, values)
    return interface


def test_a_cache_has_the_most_and_the_longest_heads() -> None:
    assert watched((4, 2, 16, 16), (4, 2, 16, 16)).heads() == Heads(4, 2, 16)
    assert watched((4, 1, 16, 16), (4, 2, 24, 16), (4, 4, 16, 32)).heads() == Heads(4, 4, 32)
    with pytest.raises(StartupError, match="differ in their attention heads"):
        watched((4, 2, 16, 16), (6, 3, 16, 16)).heads()
    with pytest.raises(StartupError, match="do not call"):
        watched().heads()


def test_windows_are_those_of_masks() -> None:
    window = sliding_window_causal_mask_function(12)
    assert watched((1, 1, 8, 8), mask=_mark(causal_mask_function), sliding_window=12).windows == [None]
    assert watched((1, 1, 8, 8), mask=_mark(window, 12), sliding_window=None).windows == [12]
    assert watched((1, 1, 8, 8), mask=_mark(window, 12)[:, :, -1:]).windows == [12]
    assert watched((1, 1, 8, 8), sliding_window=12).windows == [12]


@pytest.mark.parametrize(
    ("mask_function", "size"),
    [(bidirectional_mask_function, None), (chunked_causal_mask_function(12, torch.zeros(1, dtype=torch.int64)), 12)],
)
def test_other_masks_are_refused(mask_function: Any, size: int | None) -> None:
    with pytest.raises(StartupError, match="neither causal nor sliding windows"):
        _mark(mask_function, size)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"mask": torch.zeros(1, 1, 2, 2)}, "needs its own mask"),
        ({"mask": _mark(causal_mask_function) * 2}, "needs its own mask"),
        ({"is_causal": False}, "attend to later ones"),
        ({"position_bias": torch.zeros(1)}, "it needs position_bias"),
    ],
)
def test_calls_that_ask_for_more_are_refused(named: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        watched((1, 1, 8, 8), **named)


def test_encoders_are_refused(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=160, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(StartupError, match="neither causal"), running_engine(tmp_path):
        pass


def test_a_configuration_that_transformers_does_not_take(model_folder: ModelFolder, tmp_path: Path) -> None:
    config = json.loads((model_folder("biogpt") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": "several"}))
    with pytest.raises(StartupError, match="num_attention_heads"), running_engine(tmp_path):
        pass


def test_the_language_model_among_others(tmp_path: Path) -> None:
    """The language model is run from a checkpoint that also accepts images."""
    text = {
        "vocab_size": 160, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8, "initializer_range": 0.3,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 14,
    }  # fmt: skip
    torch.manual_seed(0)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    transformers.Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path)
    prompts = random_prompts(5, 40)
    for model_impl in ("quire", "transformers"):
        with running_engine(tmp_path, max_num_batched_tokens=33, model_impl=model_impl) as engine:
            found = run(engine, prompts, replace(GREEDY, max_tokens=8, logprobs=4))
        check_answers(tmp_path, prompts, found, 8)
