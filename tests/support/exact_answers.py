"""Compares greedy answers with Transformers', by more than their tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.support.run_engine import Output
from tests.support.tiny_models import load_reference, logits_of


def check_answers(
    folder: Path, prompts: list[list[int]], found: list[list[Output]], num_tokens: int, within: float = 2e-3
) -> None:
    """Like `check_greedy`, and compares log-probabilities, as many as answers have of them at each position.

    A model of random weights may like a token so much, after its own embedding for instance, that it says nothing else
    whatever is wrong with its layers. What it thinks of other tokens shows it.

    Args:
        within: the most by which log-probabilities may differ.
    """
    check_answers_of(load_reference(folder), prompts, found, num_tokens, within)


def check_answers_of(
    model: Any, prompts: list[list[int]], found: list[list[Output]], num_tokens: int, within: float = 2e-3
) -> None:
    """The same for a model of Transformers that is loaded already."""
    for prompt, (output,) in zip(prompts, found, strict=True):
        assert len(output.token_ids) == num_tokens
        logits = logits_of(model, prompt, output.token_ids)
        assert output.token_ids == logits.argmax(-1).tolist()
        liked = torch.tensor([position.token_ids for position in output.logprobs])
        logprobs = torch.tensor([position.logprobs for position in output.logprobs])
        expected = logits.log_softmax(-1).gather(1, liked)
        assert len(liked) == num_tokens
        assert ((logprobs - expected).abs() <= (1e-3 * expected.abs()).clamp(min=within)).all()
