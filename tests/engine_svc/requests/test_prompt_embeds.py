"""Which prompt embeddings an engine refuses: it trusts no caller."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine_svc.requests.prompt_embeds import check_values
from engine_svc.requests.request import GenerationRequest, RequestLimits
from engine_svc.requests.validation import validate
from quire.errors import InvalidRequest
from quire.prompt_embeds import MAX_PROMPT_EMBEDS_BYTES, PromptEmbeds
from quire.sampling import SamplingParameters

LIMITS = RequestLimits(
    served_model_names=("m",), vocab_size=100, max_model_len=8, max_logprobs=5, scheduling_policy="fcfs",
    prompt_embeds_size=4,
)  # fmt: skip
GOOD = PromptEmbeds("float32", 4, bytes(16 * 3))


def refused(embeds: PromptEmbeds, limits: RequestLimits = LIMITS, **fields: Any) -> str:
    request = GenerationRequest("r", fields.pop("prompt_token_ids", []), prompt_embeds=embeds, **fields)
    with pytest.raises(InvalidRequest) as caught:
        validate(request, limits)
    return str(caught.value)


def test_what_is_refused() -> None:
    validate(GenerationRequest("r", [], prompt_embeds=GOOD), LIMITS)
    assert "--enable-prompt-embeds" in refused(GOOD, replace(LIMITS, prompt_embeds_size=0))
    assert "not as both" in refused(GOOD, prompt_token_ids=[1])
    assert "prompt_logprobs" in refused(GOOD, sampling=SamplingParameters(prompt_logprobs=0))
    assert "float64; supported are" in refused(PromptEmbeds("float64", 4, bytes(32)))
    for size in (0, 3, 2**32 - 1):
        assert f"{size} values" in refused(PromptEmbeds("float32", size, bytes(12)))
    assert "one row" in refused(PromptEmbeds("float32", 4, b""))
    assert "complete rows" in refused(PromptEmbeds("float32", 4, bytes(17)))
    assert "at most" in refused(PromptEmbeds("float32", 4, bytes(MAX_PROMPT_EMBEDS_BYTES + 16)))
    assert "maximum context length is 8 tokens" in refused(PromptEmbeds("float32", 4, bytes(16 * 8)))
    assert "max_tokens is 6" in refused(GOOD, sampling=SamplingParameters(max_tokens=6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16])
def test_values_are_finite_in_the_model_s_type(dtype: torch.dtype, target: torch.dtype) -> None:
    """Of all 16-bit values, and 32-bit values with only upper bits set, those that convert to finite ones pass."""
    name, wanted = (str(each).removeprefix("torch.") for each in (dtype, target))
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    values = bits.view(dtype) if dtype.itemsize == 2 else (bits.int() << 16).view(torch.float32)
    # Values beyond the largest finite one are refused even if they would round to it.
    finite = values.to(target).isfinite() & (values.float().abs() <= torch.finfo(target).max)

    def rows(some: torch.Tensor) -> PromptEmbeds:
        return PromptEmbeds(name, 1, some.contiguous().view(torch.uint8).numpy().tobytes())

    check_values(rows(values[finite]), wanted)
    for value in values[~finite][::17]:
        with pytest.raises(InvalidRequest, match=rf"not finite in the model's {wanted}"):
            check_values(rows(value.reshape(1)), wanted)


def test_the_first_wrong_value_is_named() -> None:
    values = np.zeros((3, 4), np.float32)
    values[1, 2] = values[2, 0] = np.nan
    assert "[1, 2]" in refused(PromptEmbeds("float32", 4, values.tobytes()))
