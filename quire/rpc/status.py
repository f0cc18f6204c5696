"""Converts QuireError to a gRPC status and back: code, message, a google.rpc.ErrorInfo with reason and parameter, and a
google.rpc.RetryInfo if something is full."""

from __future__ import annotations

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from quire.error_tables import CODE_BY_NUMBER, from_status, mapping_of
from quire.errors import Overloaded, QuireError
from quire.v1 import common_pb2

_DETAILS_KEY = "grpc-status-details-bin"
_DOMAIN = "quire.v1"


def trailing_metadata(error: QuireError) -> tuple[tuple[str, bytes], ...]:
    """Metadata that carries what is known of the error in addition to code and message."""
    status = Status(code=mapping_of(error).grpc_code.value[0], message=error.message)
    info = ErrorInfo(reason=error.reason, domain=_DOMAIN, metadata={"parameter": error.parameter})
    status.details.add().Pack(info)
    if isinstance(error, Overloaded):
        retry = RetryInfo()
        retry.retry_delay.FromMilliseconds(_retry_after_ms(error))
        status.details.add().Pack(retry)
    return ((_DETAILS_KEY, status.SerializeToString()),)


async def abort(context: grpc.aio.ServicerContext, error: QuireError) -> None:
    """Ends the call with the error. Never returns."""
    told = (*(context.trailing_metadata() or ()), *trailing_metadata(error))
    await context.abort(mapping_of(error).grpc_code, error.message, told)


def from_rpc_error(error: grpc.aio.AioRpcError) -> QuireError:
    """The QuireError for a failed call."""
    info, retry = ErrorInfo(), RetryInfo()
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            info, retry = _read_details(value)
    return from_status(
        error.code(), error.details() or error.code().name, reason=info.reason,
        parameter=info.metadata.get("parameter", ""), retry_after_seconds=retry.retry_delay.ToMilliseconds() / 1000,
    )  # fmt: skip


def _read_details(value: bytes) -> tuple[ErrorInfo, RetryInfo]:
    """Serialized status details; empty messages if they cannot be read."""
    info, retry = ErrorInfo(), RetryInfo()
    try:
        for detail in Status.FromString(value).details:
            detail.Unpack(info)  # does nothing for a message of another type
            detail.Unpack(retry)
    except DecodeError:
        return ErrorInfo(), RetryInfo()
    return info, retry


def _retry_after_ms(error: QuireError) -> int:
    return max(1, round(1000 * error.retry_after_seconds)) if isinstance(error, Overloaded) else 0


def to_request_error(error: QuireError) -> common_pb2.RequestError:
    """The error as a message inside a session."""
    return common_pb2.RequestError(
        code=mapping_of(error).grpc_code.value[0], reason=error.reason, message=error.message,
        parameter=error.parameter, retry_after_ms=_retry_after_ms(error),
    )  # fmt: skip


def from_request_error(error: common_pb2.RequestError) -> QuireError:
    """The QuireError for a session's RequestError."""
    code = CODE_BY_NUMBER.get(error.code, grpc.StatusCode.INTERNAL)
    return from_status(
        code, error.message, reason=error.reason, parameter=error.parameter,
        retry_after_seconds=error.retry_after_ms / 1000,
    )  # fmt: skip
