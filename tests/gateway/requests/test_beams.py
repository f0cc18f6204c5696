"""Beam search on its own finds what Transformers finds with the same model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from gateway.requests.beams import BeamSearch, BeamSearchParameters, EarlyStopping, Likeliest
from tests.support.tiny_models import load_reference, make_model

PROMPT = [5, 17, 99, 3]
MAX_TOKENS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    # Less confident than the model of the other tests, so that the beams differ.
    return load_reference(make_model(tmp_path_factory.mktemp("llama"), "llama", initializer_range=0.06))


def likeliest(model: Any, outputs: Sequence[tuple[int, ...]], count: int) -> list[Likeliest]:
    with torch.inference_mode():
        logits = model(torch.tensor([[*PROMPT, *output] for output in outputs])).logits[:, -1].float()
    best = logits.log_softmax(-1).topk(count)
    return [
        Likeliest(tuple(ids), tuple(logprobs))
        for ids, logprobs in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def search(model: Any, parameters: BeamSearchParameters, max_tokens: int = MAX_TOKENS) -> list[list[int]]:
    beams = BeamSearch(parameters, max_tokens)
    while not beams.done:
        known = likeliest(model, [beam.token_ids for beam in beams.running], parameters.num_candidates)
        beams.advance(known)
    assert all(len(beam.chosen) == len(beam.token_ids) for beam in beams.outputs)
    return [list(beam.token_ids) for beam in beams.outputs]


@pytest.mark.parametrize(
    ("width", "length_penalty", "early_stopping", "num_endings"),
    [
        (2, 1.0, False, 1), (3, 1.0, True, 3), (5, 1.0, "never", 1), (3, 0.0, False, 3), (5, 0.0, True, 1),
        (2, 0.0, "never", 3), (5, -1.0, False, 3), (2, -1.0, True, 1), (3, -1.0, "never", 3), (2, 2.0, False, 1),
        (3, 2.0, True, 1), (5, 2.0, "never", 3),
    ],
)  # fmt: skip
def test_outputs_are_those_of_transformers(
    model: Any, common_tokens: list[int], width: int, length_penalty: float, early_stopping: EarlyStopping,
    num_endings: int,
) -> None:  # fmt: skip
    ending = common_tokens[:num_endings]
    expected = model.generate(
        torch.tensor([PROMPT]), num_beams=width, num_return_sequences=width, do_sample=False,
        max_new_tokens=MAX_TOKENS, early_stopping=early_stopping, length_penalty=length_penalty,
        eos_token_id=ending, pad_token_id=0, use_cache=False,
    )  # fmt: skip
    found = search(model, BeamSearchParameters(width, frozenset(ending), length_penalty, early_stopping))
    assert found == [cut(output, ending) for output in expected[:, len(PROMPT) :].tolist()]


@pytest.fixture(scope="module")
def common_tokens(model: Any) -> list[int]:
    """Tokens of the likeliest outputs, rarest first: as end tokens, they end some outputs early and others late."""
    outputs = search(model, BeamSearchParameters(8, frozenset()))
    tokens = [token for output in outputs for token in output]
    return sorted(set(tokens), key=lambda token: (tokens.count(token), token))


def cut(output: list[int], ending: list[int]) -> list[int]:
    """The output up to and including its end token, without the padding after it."""
    return next((output[: at + 1] for at, token in enumerate(output) if token in ending), output)


def test_what_cannot_be_is_no_output() -> None:
    beams = BeamSearch(BeamSearchParameters(3, frozenset()), 2)
    beams.advance([Likeliest((7, 8, 9), (-0.1, -3.0, float("-inf")))])
    assert [beam.token_ids for beam in beams.running] == [(7,), (8,)]
    beams.advance([Likeliest((1, 2, 3), (float("-inf"),) * 3), Likeliest((1, 2, 3), (0.0,) + (float("-inf"),) * 2)])
    assert beams.done
    assert [beam.token_ids for beam in beams.outputs] == [(8, 1)]


def test_what_nothing_can_follow_is_an_output_as_it_is() -> None:
    beams = BeamSearch(BeamSearchParameters(2, frozenset({5})), 9)
    beams.advance([Likeliest((1, 2), (-0.5, -0.6))])
    beams.advance([None, Likeliest((5, 3), (-0.1, -9.0))])
    assert [(beam.token_ids, beam.is_complete, beams.ends(beam)) for beam in beams.outputs] == [
        ((2, 5), False, True), ((1,), True, False)
    ]  # fmt: skip
    assert beams.done
