"""Constraints arrive over the wire unchanged."""

from __future__ import annotations

import pytest

from quire.errors import InvalidRequest
from quire.rpc.constraint import from_asked, from_constraint, to_asked, to_constraint
from quire.structured.asked import AskedConstraint
from quire.structured.base import Constraint, ConstraintRequest, Form
from quire.v1 import tokenizer_pb2


@pytest.mark.parametrize(
    "request_",
    [
        *(ConstraintRequest(form, "é") for form in Form if form is not Form.CHOICES),
        ConstraintRequest(Form.CHOICES, choices=("a", "é")),
        ConstraintRequest(Form.CHOICES),
        ConstraintRequest(Form.REGEX, "", (), True, True, " "),
    ],
)
def test_there_and_back(request_: ConstraintRequest) -> None:
    asked = AskedConstraint(request_, "outlines", disable_fallback=True)
    assert to_asked(from_asked(asked)) == asked


def test_a_constraint() -> None:
    constraint = Constraint.of("guidance", b"\xff\0")
    assert to_constraint(from_constraint(constraint)) == constraint


def test_half_a_character() -> None:
    for form in (Form.REGEX, Form.JSON_SCHEMA):
        with pytest.raises(InvalidRequest, match="unpaired surrogate"):
            from_asked(AskedConstraint(ConstraintRequest(form, "\ud800")))


@pytest.mark.parametrize(
    "request_",
    [tokenizer_pb2.CompileConstraintRequest(), tokenizer_pb2.CompileConstraintRequest(json_schema=b"\xff")],
)
def test_no_form(request_: tokenizer_pb2.CompileConstraintRequest) -> None:
    with pytest.raises(InvalidRequest):
        to_asked(request_)
