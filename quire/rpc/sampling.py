"""Sampling parameters on the wire: only what is not neutral is set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.sampling import SamplingParameters
from quire.v1 import common_pb2

_NEUTRAL = SamplingParameters()


def to_sampling(message: common_pb2.SamplingParams) -> SamplingParameters:
    """The fields that are set, by their names; the others have their neutral values (of `n`, 0 stands for 1)."""
    return SamplingParameters(**{field.name: _plain(value) for field, value in message.ListFields()})


def from_sampling(sampling: SamplingParameters) -> common_pb2.SamplingParams:
    """The message that `to_sampling` reads as this."""
    fields = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    given = {name: value for name, value in fields.items() if value != getattr(_NEUTRAL, name)}
    if sampling.logit_bias:
        given["logit_bias"] = dict(sampling.logit_bias)
    return common_pb2.SamplingParams(**given)


def _plain(value: Any) -> Any:
    """A field's value; lists as tuples, and maps as the tuple of their entries by key."""
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
