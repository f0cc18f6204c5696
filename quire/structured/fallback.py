"""Which backends are worth trying when another cannot express a constraint. Imports none of them, as some are slow to
import."""

from __future__ import annotations

import re

from quire.errors import InvalidRequest
from quire.structured.base import ConstraintRequest, Form
from quire.structured.json_keywords import OBEYED, parse_schema

_IRREGULAR = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]")  # lookahead, lookbehind, and backreferences


def may_express(backend: str, request: ConstraintRequest) -> bool:
    """Whether the backend may be able to express the constraint; only compiling decides."""
    if request.form is Form.REGEX:
        return not _IRREGULAR.search(request.text)
    if backend not in OBEYED:
        return True
    if request.form is Form.JSON_SCHEMA:
        return _may_obey(backend, request)
    return request.form is Form.CHOICES or (request.form is Form.GRAMMAR and backend == "xgrammar")


def _may_obey(backend: str, request: ConstraintRequest) -> bool:
    if request.whitespace_pattern and backend == "xgrammar":
        return False
    try:
        parse_schema(request.text, backend)
    except InvalidRequest:
        return False
    return True
