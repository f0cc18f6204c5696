"""Conversion of constraints to and from protobuf."""

from __future__ import annotations

from quire.errors import InvalidRequest
from quire.structured.asked import AskedConstraint
from quire.structured.base import Constraint, ConstraintRequest, Form
from quire.v1 import common_pb2, tokenizer_pb2

_BYTES = (Form.JSON_SCHEMA, Form.STRUCTURAL_TAG)  # JSON, sent as bytes


def from_asked(asked: AskedConstraint) -> tokenizer_pb2.CompileConstraintRequest:
    """The request that has the tokenizer service compile a constraint.

    Raises:
        InvalidRequest: a text cannot be encoded.
    """
    wanted = asked.request
    try:
        request = tokenizer_pb2.CompileConstraintRequest(
            backend=asked.backend,
            disable_fallback=asked.disable_fallback,
            disable_any_whitespace=wanted.disable_any_whitespace,
            disable_additional_properties=wanted.disable_additional_properties,
            whitespace_pattern=wanted.whitespace_pattern,
        )
        if wanted.form is Form.CHOICES:
            request.choices.SetInParent()
            request.choices.texts.extend(wanted.choices)
        else:
            text = wanted.text.encode()
            setattr(request, wanted.form.value, text if wanted.form in _BYTES else wanted.text)
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"It has an unpaired surrogate: {error}") from None
    return request


def to_asked(request: tokenizer_pb2.CompileConstraintRequest) -> AskedConstraint:
    """The constraint that a request asks for.

    Raises:
        InvalidRequest: it asks for none, or its text is not UTF-8.
    """
    name = request.WhichOneof("form")
    if name is None:
        raise InvalidRequest("One of json_schema, regex, grammar, choices and structural_tag must be set.")
    form, content = Form(name), getattr(request, name)
    try:
        text = "" if form is Form.CHOICES else content.decode() if form in _BYTES else content
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} is not UTF-8: {error}", parameter=name) from None
    wanted = ConstraintRequest(
        form, text, tuple(request.choices.texts), request.disable_any_whitespace,
        request.disable_additional_properties, request.whitespace_pattern,
    )  # fmt: skip
    return AskedConstraint(wanted, request.backend, request.disable_fallback)


def to_constraint(constraint: common_pb2.Constraint) -> Constraint:
    """The compiled constraint in a message."""
    return Constraint(constraint.backend, constraint.grammar, constraint.key)


def from_constraint(constraint: Constraint) -> common_pb2.Constraint:
    """The message for a compiled constraint."""
    return common_pb2.Constraint(backend=constraint.backend, grammar=constraint.grammar, key=constraint.key)
