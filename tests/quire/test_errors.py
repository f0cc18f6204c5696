"""The error hierarchy and its tables."""

from __future__ import annotations

import grpc
import pytest

from quire.error_tables import CODE_BY_NUMBER, TABLE, from_status, mapping_of
from quire.errors import ContextTooLong, Internal, InvalidRequest, Overloaded, QuireError, StartupError, Unavailable

OWN_CODES = [cls for cls in TABLE if cls.__base__ is QuireError]  # the others have their base class's


def all_errors(cls: type[QuireError] = QuireError) -> list[type[QuireError]]:
    return [sub for direct in cls.__subclasses__() for sub in (direct, *all_errors(direct))]


@pytest.mark.parametrize("cls", all_errors())
def test_every_error_has_a_mapping_and_a_reason(cls: type[QuireError]) -> None:
    mapping = mapping_of(cls("What and how."))
    assert 400 <= mapping.http_status < 600
    assert mapping.http_type
    assert cls.reason == cls.reason.upper()


def test_every_code_is_used_once() -> None:
    codes = [TABLE[cls].grpc_code for cls in OWN_CODES]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("cls", OWN_CODES)
def test_a_status_gives_the_error_back(cls: type[QuireError]) -> None:
    error = from_status(mapping_of(cls("x")).grpc_code, "What.", reason="WHY", parameter="n")
    assert type(error) is cls
    assert (error.message, error.reason, error.parameter, str(error)) == ("What.", "WHY", "n", "What.")


def test_a_subclass_takes_its_parents_mapping() -> None:
    assert mapping_of(ContextTooLong("x")) == mapping_of(InvalidRequest("x"))
    error = from_status(grpc.StatusCode.INVALID_ARGUMENT, "x", reason=ContextTooLong.reason, parameter="prompt")
    assert isinstance(error, ContextTooLong)
    assert error.parameter == "prompt"


def test_overload_and_absence_look_alike_to_http_but_not_to_grpc() -> None:
    overloaded, unavailable = mapping_of(Overloaded("x")), mapping_of(Unavailable("x"))
    assert overloaded.http_status == unavailable.http_status == 503
    assert overloaded.grpc_code is not unavailable.grpc_code


def test_unknown_codes_are_internal() -> None:
    assert isinstance(from_status(grpc.StatusCode.DATA_LOSS, "x"), Internal)


def test_numbers_of_codes() -> None:
    assert CODE_BY_NUMBER[3] is grpc.StatusCode.INVALID_ARGUMENT
    assert len(CODE_BY_NUMBER) == 17


def test_a_startup_error_is_not_for_callers() -> None:
    assert not issubclass(StartupError, QuireError)
