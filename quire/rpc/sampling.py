"""Conversion of sampling parameters to and from protobuf; neutral values are left unset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quire.reasoning import ReasoningMarks
from quire.sampling import LogitsProcessorCall, RepetitionDetection, SamplingParameters
from quire.v1 import common_pb2


def to_sampling(message: common_pb2.SamplingParams) -> SamplingParameters:
    """The parameters in a message; unset fields have their neutral values (for `n`, 0 stands for 1)."""
    return SamplingParameters(**{field.name: _plain(value) for field, value in message.ListFields()})


def from_sampling(sampling: SamplingParameters) -> common_pb2.SamplingParams:
    """The message that `to_sampling` converts back to these parameters."""
    given = sampling.given()
    if sampling.logit_bias:
        given["logit_bias"] = dict(sampling.logit_bias)
    if sampling.bad_words:
        given["bad_words"] = [common_pb2.TokenIds(token_ids=run) for run in sampling.bad_words]
    if sampling.logits_processors:
        calls = [common_pb2.LogitsProcessorCall(**msgspec.structs.asdict(call)) for call in sampling.logits_processors]
        given["logits_processors"] = calls
    if sampling.repetition_detection:
        detection = msgspec.structs.asdict(sampling.repetition_detection)
        given["repetition_detection"] = common_pb2.RepetitionDetection(**detection)
    if sampling.reasoning:
        given["reasoning"] = from_marks(sampling.reasoning)
    return common_pb2.SamplingParams(**given)


def to_marks(message: common_pb2.ReasoningMarks) -> ReasoningMarks:
    """The unchecked marks in a message."""
    return ReasoningMarks(**{field.name: _plain(value) for field, value in message.ListFields()})


def from_marks(marks: ReasoningMarks) -> common_pb2.ReasoningMarks:
    """The message that `to_marks` converts back to these marks."""
    return common_pb2.ReasoningMarks(**msgspec.structs.asdict(marks))


def _plain(value: Any) -> Any:
    """A field's value as a plain type: lists as tuples, maps as sorted tuples of their entries, messages as Quire's
    types."""
    if isinstance(value, common_pb2.ReasoningMarks):
        return to_marks(value)
    if isinstance(value, common_pb2.RepetitionDetection):
        return RepetitionDetection(value.max_pattern_size, value.min_pattern_size, value.min_count)
    if isinstance(value, common_pb2.LogitsProcessorCall):
        return LogitsProcessorCall(value.qualname, value.args or b"[]", value.kwargs or b"{}")
    if isinstance(value, common_pb2.TokenIds):
        return tuple(value.token_ids)
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    return tuple(map(_plain, value)) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else value
