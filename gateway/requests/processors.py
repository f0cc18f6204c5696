"""Converts a request's logits processors and their arguments to the wire format."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.protocol.common import GenerationFields, LogitsProcessorFields
from quire.bounds import MAX_LOGITS_PROCESSORS, MAX_QUALNAME_LENGTH, MAX_XARGS_BYTES, check_count
from quire.sampling import LogitsProcessorCall

_encoder = msgspec.json.Encoder()


def encoded_xargs(body: GenerationFields) -> bytes:
    """Returns `vllm_xargs` as JSON; empty if there are none.

    Raises:
        InvalidRequest: it is too long.
    """
    text = _encoder.encode(body.vllm_xargs) if body.vllm_xargs else b""
    check_count("vllm_xargs", len(text), MAX_XARGS_BYTES, "bytes of JSON")
    return text


def processor_calls(body: GenerationFields) -> tuple[LogitsProcessorCall, ...]:
    """Converts `logits_processors`; the engines check whether they are allowed.

    Raises:
        InvalidRequest: there are too many, or a name or its arguments are too long.
    """
    wanted: Sequence[str | LogitsProcessorFields] = body.logits_processors or ()
    check_count("logits_processors", len(wanted), MAX_LOGITS_PROCESSORS, "entries")
    return tuple(map(_call, wanted))


def _call(wanted: str | LogitsProcessorFields) -> LogitsProcessorCall:
    fields = LogitsProcessorFields(wanted) if isinstance(wanted, str) else wanted
    call = LogitsProcessorCall(
        fields.qualname, _encoder.encode(fields.args or []), _encoder.encode(fields.kwargs or {})
    )
    check_count("logits_processors", len(call.qualname), MAX_QUALNAME_LENGTH, "characters in a name")
    check_count("logits_processors", len(call.args) + len(call.kwargs), MAX_XARGS_BYTES, "bytes of JSON")
    return call
