"""Which tokens a token was sampled from (--return-sampling-mask)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from engine_svc.sampling.kept_tokens import has_few, kept_tokens
from quire.options.speculative import SpeculativeConfig
from quire.sampling import SamplingParameters
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine
from tests.support.tiny_models import make_model

MASKED = {"return_sampling_mask": True, "max_model_len": 128, "logprobs_mode": "processed_logprobs"}
DRAWN = SamplingParameters(temperature=1.0, top_k=5, top_p=0.9, max_tokens=12, seed=3, ignore_eos=True, logprobs=5)


def test_what_is_kept() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0], [5.0, 5.0, 5.0, 0.0]]).log_softmax(-1)
    kept = kept_tokens(
        logits, [SamplingParameters(top_k=3, min_p=0.3), SamplingParameters(top_k=2)], torch.tensor([2, 2])
    )
    first, tied = kept.read()
    assert first == [1, 2]
    assert 2 in tied and len(tied) in (2, 3)  # which of equally likely tokens the draw has kept is not known
    wanted = [has_few(SamplingParameters(temperature=heat, top_k=k)) for heat, k in ((1, 5), (0, 5), (1, 0), (1, 2049))]
    assert wanted == [True, False, False, False]


@pytest.mark.parametrize("guesses", [False, True])
def test_an_engine_returns_one_for_each_token(tmp_path: Path, guesses: bool) -> None:
    """The log-probabilities over the kept tokens add up to 1; others have none."""
    config = msgspec.to_builtins(SpeculativeConfig(method="ngram", num_speculative_tokens=3))
    options: dict[str, Any] = {"speculative_config": config} if guesses else {}
    prompt = random_prompts(4)[0] * 6
    with running_engine(make_model(tmp_path / "model", "llama-untied"), **MASKED, **options) as engine:
        (drawn,) = run(engine, [prompt], msgspec.structs.replace(DRAWN, n=2))
        ((greedy,),) = run(engine, [prompt], GREEDY)
    assert not greedy.sampling_masks
    for output in drawn:
        assert len(output.sampling_masks) == len(output.token_ids) == 12
        for token_id, mask, scores in zip(output.token_ids, output.sampling_masks, output.logprobs, strict=True):
            assert token_id in mask and 1 <= len(mask) <= 5
            known = dict(zip(scores.token_ids, scores.logprobs, strict=True))
            assert sum(torch.tensor([known[each] for each in mask]).exp()) == pytest.approx(1.0, abs=1e-4)
