"""Conversion of messages from routers and tokenizer services to updates of choices."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.answers.deltas import ChoiceUpdate, Content, Finish, FinishReason, PromptScore, TokenScore
from gateway.services.convert import to_served_model, to_update
from quire.media import MediaKind
from quire.sampling import SamplingParameters
from quire.v1 import common_pb2, tokenizer_pb2

SCORES = [common_pb2.TokenLogprobs(token_ids=[i, 9], logprobs=[-0.5, -i], rank=i) for i in (1, 2, 3)]


def test_tokens_and_text() -> None:
    delta = common_pb2.GenerationDelta(token_ids=[7, 8])
    assert to_update(3, delta) == ChoiceUpdate(3, (), (7, 8))
    assert to_update(3, delta, tokenizer_pb2.TextDelta(text="so")) == ChoiceUpdate(3, (Content("so"),), (7, 8))


def test_an_end_has_its_reason() -> None:
    delta = common_pb2.GenerationDelta(token_ids=[7], finish_reason=common_pb2.FINISH_REASON_STOP, stop_token_id=0)
    assert to_update(0, delta).finish == Finish(FinishReason.STOP, 0)
    delta.ClearField("stop_token_id")
    assert to_update(0, delta).finish == Finish(FinishReason.STOP)


def test_what_comes_after_a_stop_string_is_nobodys() -> None:
    delta = common_pb2.GenerationDelta(token_ids=[1, 2, 3], logprobs=SCORES)
    text = tokenizer_pb2.TextDelta(
        text="a", stop_string="b", tokens_used=2, lookup_token_bytes=[b"1", b"9", b"2", b"9", b"3", b"9"]
    )
    update = to_update(0, delta, text)
    assert update.deltas == (Content("a"), Finish(FinishReason.STOP, "b"))
    assert update.token_ids == (1, 2)
    assert update.scores[1] == TokenScore((2, 9), (-0.5, -2.0), (b"2", b"9"), 2)
    assert len(update.scores) == 2


def test_scores_of_a_prompt_are_made_as_they_are_read() -> None:
    found = to_update(0, common_pb2.GenerationDelta(prompt_logprobs=SCORES)).prompt_scores
    expected = [PromptScore((i, 9), (-0.5, -float(i)), i) for i in (1, 2, 3)]
    assert (len(found), list(found), found[-1]) == (3, expected, expected[-1])
    assert list(found[1:]) == expected[1:]
    with pytest.raises(IndexError):
        found[3]
    assert not to_update(0, common_pb2.GenerationDelta(token_ids=[1])).prompt_scores


def test_a_model_has_the_defaults_of_its_generation_config() -> None:
    info = common_pb2.ModelInfo(
        served_model_names=["a", "b"], max_model_len=9, default_sampling={"top_k": 3}, architecture="A"
    )
    model = to_served_model(info)
    assert (model.served_model_names, model.max_model_len, model.architecture) == (("a", "b"), 9, "A")
    assert model.default_sampling == SamplingParameters(top_k=3)


@pytest.mark.parametrize(
    ("fields", "media"),
    [
        ({}, ()), ({"accepts_images": True}, (MediaKind.IMAGE,)), ({"accepts_videos": True}, (MediaKind.VIDEO,)),
        ({"accepts_images": True, "accepts_videos": True}, (MediaKind.IMAGE, MediaKind.VIDEO)),
        ({"accepts_audio": True}, (MediaKind.AUDIO,)),
    ],
)  # fmt: skip
def test_what_a_model_reads(fields: dict[str, Any], media: tuple[MediaKind, ...]) -> None:
    assert to_served_model(common_pb2.ModelInfo(served_model_names=["a"], **fields)).media == media


def test_what_comes_with_each_token_ends_with_a_stop_string() -> None:
    masks = [common_pb2.TokenIds(token_ids=[7, 1]), common_pb2.TokenIds(token_ids=[8])]
    delta = common_pb2.GenerationDelta(token_ids=[7, 8], sampling_masks=masks, routed_experts=[b"ab", b"c"])
    whole = to_update(0, delta)
    assert (whole.sampling_masks, whole.routed_experts) == (((7, 1), (8,)), (b"ab", b"c"))
    cut = to_update(0, delta, tokenizer_pb2.TextDelta(stop_string="x", tokens_used=1))
    assert (cut.token_ids, cut.sampling_masks, cut.routed_experts) == ((7,), ((7, 1),), (b"ab",))
