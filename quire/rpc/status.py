"""Converts QuireError to a gRPC status and back: code, message, and a google.rpc.ErrorInfo with reason and
parameter."""

from __future__ import annotations

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from quire.error_tables import CODE_BY_NUMBER, from_status, mapping_of
from quire.errors import QuireError
from quire.v1 import common_pb2

_DETAILS_KEY = "grpc-status-details-bin"
_DOMAIN = "quire.v1"


def trailing_metadata(error: QuireError) -> tuple[tuple[str, bytes], ...]:
    """Metadata that carries the error's reason and parameter in addition to code and message."""
    info = ErrorInfo(reason=error.reason, domain=_DOMAIN, metadata={"parameter": error.parameter})
    detail = AnyMessage()
    detail.Pack(info)
    status = Status(code=mapping_of(error).grpc_code.value[0], message=error.message, details=[detail])
    return ((_DETAILS_KEY, status.SerializeToString()),)


async def abort(context: grpc.aio.ServicerContext, error: QuireError) -> None:
    """Ends the call with the error. Never returns."""
    told = (*(context.trailing_metadata() or ()), *trailing_metadata(error))
    await context.abort(mapping_of(error).grpc_code, error.message, told)


def from_rpc_error(error: grpc.aio.AioRpcError) -> QuireError:
    """The QuireError for a failed call."""
    reason, parameter = "", ""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            reason, parameter = _read_details(value)
    return from_status(error.code(), error.details() or error.code().name, reason=reason, parameter=parameter)


def _read_details(value: bytes) -> tuple[str, str]:
    """(reason, parameter) of serialized status details; empty strings if they cannot be read."""
    try:
        status = Status.FromString(value)
        info = ErrorInfo()
        for detail in status.details:
            if detail.Is(ErrorInfo.DESCRIPTOR):
                detail.Unpack(info)
    except DecodeError:
        return "", ""
    return info.reason, info.metadata.get("parameter", "")


def to_request_error(error: QuireError) -> common_pb2.RequestError:
    """The error as a message inside a session."""
    return common_pb2.RequestError(
        code=mapping_of(error).grpc_code.value[0], reason=error.reason, message=error.message, parameter=error.parameter
    )


def from_request_error(error: common_pb2.RequestError) -> QuireError:
    """The QuireError for a session's RequestError."""
    code = CODE_BY_NUMBER.get(error.code, grpc.StatusCode.INTERNAL)
    return from_status(code, error.message, reason=error.reason, parameter=error.parameter)
