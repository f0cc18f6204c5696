"""Constrains tool calls to their schemas: a structural tag made from a request's tools, in the model's call format."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.answers.context import Tool, ToolChoice
from gateway.requests.constraint import NamedConstraint
from gateway.requests.tools import ToolUse, tools_json
from gateway.tool_parsers.base import CallSyntax, ToolParser
from quire.errors import InvalidRequest
from quire.structured.asked import AskedConstraint
from quire.structured.base import ConstraintRequest, Form

Element = dict[str, Any]  # element of a structural tag
_Form = tuple[Tool, CallSyntax]

_NO_ARGUMENTS = {"properties": {}, "additionalProperties": False}
# The guidance backend supports structural tags; the server may use another one for constraints on content.
_NOTHING_ASKED = AskedConstraint(ConstraintRequest(Form.STRUCTURAL_TAG), backend="guidance")
_SPACE = r" \t\r\n"


def answer_constraint(use: ToolUse, content: NamedConstraint | None) -> NamedConstraint | None:
    """Returns the constraint for an answer that may call tools.

    A forced call is the entire answer. With automatic choice, the answer is either tool calls or text that satisfies
    `content`; and once a call has begun, it must match its schema if the tool is strict.

    Args:
        content: the request's constraint on the text of its answers.

    Raises:
        InvalidRequest: calls in the model's format cannot be constrained, or not together with this kind of content.
    """
    if use.reader is None and not use.is_bound:
        return content
    if use.reader is not None and use.choice is not ToolChoice.AUTO:
        return _named(_calls(use, use.reader), _NOTHING_ASKED, "tools")
    if content is not None:
        reader = _expressible(use.reader, content.parameter)
        return _named(_either([_calls(use, reader), _content(content)]), content.asked, content.parameter)
    if not use.is_bound:
        return None
    return _named(_text_with_calls(use, _expressible(use.reader, "tools")), _NOTHING_ASKED, "tools")


def _named(form: Element, asked: AskedConstraint, parameter: str) -> NamedConstraint:
    text = tools_json({"type": "structural_tag", "format": form}).decode()
    request = dataclasses.replace(asked.request, form=Form.STRUCTURAL_TAG, text=text, choices=())
    return NamedConstraint(dataclasses.replace(asked, request=request), parameter)


def _expressible(reader: type[ToolParser] | None, parameter: str) -> type[ToolParser]:
    if reader is None or reader.syntax("f") is None:
        raise InvalidRequest(
            f"{parameter}: this server's --tool-call-parser does not define how the model writes its calls, so the "
            "output cannot be constrained while the model decides whether to call a tool. Leave out strict, "
            "allowed_tools and response formats, or set tool_choice to required or none.",
            parameter=parameter,
        )
    return reader


def _calls(use: ToolUse, reader: type[ToolParser]) -> Element:
    """Calls from the first character to the last."""
    return _either([
        _tag(forms[0][1].before, _row(use, reader, forms), forms[0][1].after) for forms in _ways(use, reader)
    ])  # fmt: skip


def _text_with_calls(use: ToolUse, reader: type[ToolParser]) -> Element:
    """Free text, in which calls may begin wherever the model's format allows."""
    triggers = [
        word for word in reader.begins if not any(word != one and word.startswith(one) for one in reader.begins)
    ]
    begun = [tag for word in triggers for tag in _begun(use, reader, word)]
    is_last = not use.is_parallel or not _are_closed(use, reader)
    text = {"type": "triggered_tags", "triggers": triggers, "tags": begun, "stop_after_first": is_last}
    if not reader.bare:
        return text
    beginnings = "".join(re.escape(word[0]) for word in (*reader.bare, *triggers))
    plain = {"type": "regex", "pattern": f"[{_SPACE}]*[^{_SPACE}{beginnings}]"}
    behind = text if triggers else {"type": "any_text"}
    silence = {"type": "const_string", "value": ""}
    return _either([_calls(use, reader), *begun, {"type": "sequence", "elements": [plain, behind]}, silence])


def _begun(use: ToolUse, reader: type[ToolParser], word: str) -> list[Element]:
    """Tags that a trigger word may begin: a row of calls, or a call of one of the tools.

    If the word is an alternative to the one in the call syntax, it replaces that one.
    """
    return [tag for forms in _ways(use, reader) for tag in _begun_in(use, reader, forms, word)]


def _begun_in(use: ToolUse, reader: type[ToolParser], forms: Sequence[_Form], word: str) -> list[Element]:
    first = forms[0][1]
    before_rows, before_calls = (_usual_word(reader, text) for text in (first.before, first.begin))
    if first.before and (word == before_rows or not before_calls):
        return [_tag(word + first.before[len(before_rows) :], _row(use, reader, forms), first.after)]
    begins = (syntax.begin for _, syntax in forms)
    begins = (each[each.index(word) :] if word in each else word + each[len(before_calls) :] for each in begins)
    return [
        _tag(begin, _arguments(use, reader, tool), syntax.end)
        for begin, (tool, syntax) in zip(begins, forms, strict=True)
    ]


def _usual_word(reader: type[ToolParser], text: str) -> str:
    """Returns the trigger word that a text begins with; empty if none."""
    return next((word for word in reader.begins if text.startswith(word)), "")


def _are_closed(use: ToolUse, reader: type[ToolParser]) -> bool:
    """Whether calls have an end mark, after which text is plain text. Without one, it may be read as another call."""
    last = _ways(use, reader)[0][0][1]
    return any(word in last.end + last.after for word in reader.ends) or not (reader.ends or reader.bare)


def _ways(use: ToolUse, reader: type[ToolParser]) -> list[list[_Form]]:
    """The ways in which calls may be written: for each, the tools with the syntax of their calls."""
    ways = [[(tool, find(tool.name)) for tool in use.tools] for find in (reader.syntax, reader.other_syntax)]
    found = [[(tool, syntax) for tool, syntax in way if syntax is not None] for way in ways]
    return [way for way in found if way]


def _row(use: ToolUse, reader: type[ToolParser], forms: Sequence[_Form]) -> Element:
    """One call, or several if allowed."""
    tags = [_tag(syntax.begin, _arguments(use, reader, tool), syntax.end) for tool, syntax in forms]
    return {"type": "tags_with_separator", "tags": tags, "separator": forms[0][1].separator, "at_least_one": True,
            "stop_after_first": not use.is_parallel or use.choice is ToolChoice.NAMED}  # fmt: skip


def _arguments(use: ToolUse, reader: type[ToolParser], tool: Tool) -> Element:
    """The arguments that the tool's schema allows; any for a tool that is not strict, with automatic choice."""
    is_loose = use.choice is ToolChoice.AUTO and not tool.is_strict
    schema = {"type": "object"} if is_loose else {"type": "object", **(tool.parameters or _NO_ARGUMENTS)}
    form = reader.argument_form(Tool(tool.name, schema))
    return {"type": "json_schema", "json_schema": schema} if form is None else dict(form)


def _tag(begin: str, content: Element, end: str) -> Element:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _either(elements: Sequence[Element]) -> Element:
    return {"type": "or", "elements": list(elements)} if len(elements) > 1 else elements[0]


def _content(asked: NamedConstraint) -> Element:
    """Converts a constraint on the text into an element of a structural tag.

    Raises:
        InvalidRequest: it cannot be expressed in one.
    """
    request = asked.asked.request
    if request.form is Form.JSON_SCHEMA:
        return {"type": "json_schema", "json_schema": _decoded(request.text, asked.parameter)}
    if request.form is Form.REGEX:
        return {"type": "regex", "pattern": request.text}
    if request.form is Form.CHOICES:
        return _either([{"type": "const_string", "value": text} for text in request.choices])
    raise InvalidRequest(
        f"{asked.parameter}: a grammar or structural tag cannot be combined with tools that the model may call; set "
        "tool_choice to none, or leave one of the two out.",
        parameter=asked.parameter,
    )


def _decoded(schema: str, parameter: str) -> Any:
    try:
        return msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{parameter} is not valid JSON: {error}", parameter=parameter) from None
