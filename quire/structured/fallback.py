"""Which backends are worth a try where another cannot express a constraint. Needs none of them: some start slowly."""

from __future__ import annotations

import re

from quire.errors import InvalidRequest
from quire.structured.base import ConstraintRequest, Form
from quire.structured.json_keywords import OBEYED, parse_schema

_IRREGULAR = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]")  # what is ahead or behind, and what was matched before


def may_express(backend: str, request: ConstraintRequest) -> bool:
    """Whether the backend could; what it makes of it in the end is another matter."""
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
