"""Errors on the wire: statuses with ErrorInfo, and errors inside sessions."""

from __future__ import annotations

import grpc
import pytest

from quire.error_tables import TABLE, from_status, mapping_of
from quire.errors import ContextTooLong, InvalidRequest, Overloaded, QuireError
from quire.rpc.status import from_request_error, from_rpc_error, to_request_error, trailing_metadata
from quire.v1 import common_pb2

CLASSES = [*TABLE, ContextTooLong]


def as_rpc_error(error: QuireError, trailing: grpc.aio.Metadata) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(mapping_of(error).grpc_code, grpc.aio.Metadata(), trailing, error.message)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_survives_both_wires(cls: type[QuireError]) -> None:
    error = cls("What and how.", parameter="max_tokens")
    rpc = from_rpc_error(as_rpc_error(error, grpc.aio.Metadata(*trailing_metadata(error))))
    inside = from_request_error(common_pb2.RequestError.FromString(to_request_error(error).SerializeToString()))
    for copy in (rpc, inside):
        assert type(copy) is cls
        assert (copy.message, copy.reason, copy.parameter) == ("What and how.", cls.reason, "max_tokens")


def test_the_time_to_wait_survives_both_wires() -> None:
    error = Overloaded("Full.", retry_after_seconds=12.5)
    rpc = from_rpc_error(as_rpc_error(error, grpc.aio.Metadata(*trailing_metadata(error))))
    for copy in (rpc, from_request_error(to_request_error(error))):
        assert isinstance(copy, Overloaded)
        assert copy.retry_after_seconds == 12.5


def test_a_reason_of_its_own_survives() -> None:
    error = from_request_error(to_request_error(InvalidRequest("No.", reason="TOO_MANY_STOPS")))
    assert error.reason == "TOO_MANY_STOPS"


@pytest.mark.parametrize("details", [b"", b"\xff\xff\xff", b"\x08\x03"])
def test_details_that_cannot_be_read_are_ignored(details: bytes) -> None:
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", details))
    error = from_rpc_error(as_rpc_error(InvalidRequest("No."), trailing))
    assert isinstance(error, InvalidRequest)
    assert error.message == "No."


def test_codes_that_quire_never_sends_are_internal() -> None:
    assert mapping_of(from_status(grpc.StatusCode.DATA_LOSS, "lost")).http_status == 500
    assert from_request_error(common_pb2.RequestError(code=99, message="?")).reason == "INTERNAL"
