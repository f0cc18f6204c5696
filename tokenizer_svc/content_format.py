"""Detects whether a chat template expects a message's content as a string, as OpenAI's list of parts, or as either."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2 import nodes


@dataclass(frozen=True)
class ContentUse:
    """What a template does with the content of messages.

    Attributes:
        takes_parts: it loops over the content.
        takes_text: it tests whether the content is a string, so that it takes both forms.
        takes_null: it tests whether the content is null.
    """

    takes_parts: bool
    takes_text: bool
    takes_null: bool


def content_use(template: str, environment: jinja2.Environment) -> ContentUse:
    """Finds out what a template does with content, with variables assigned from it and with macros called with it.

    Raises:
        jinja2.TemplateSyntaxError: it is not valid Jinja.
    """
    tree = environment.parse(template)
    names = _names_of_content(tree)
    tests = {test.name for test in tree.find_all(nodes.Test) if _is_content(test.node, names)}
    return ContentUse(
        takes_parts=any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For)),
        takes_text="string" in tests,
        takes_null="none" in tests,
    )


def _names_of_content(tree: nodes.Template) -> set[str]:
    """The variables that hold content, and the parameters of macros that are called with it."""
    assigned = [(each.target.name, each.node) for each in _of_names(tree.find_all(nodes.Assign))]
    others = {name for name, value in assigned if _is_another_field(value)}
    bound = [(name, value) for name, value in assigned if name not in others] + list(_arguments(tree))
    names: set[str] = set()
    while found := {name for name, value in bound if _is_content(value, names)} - names:
        names |= found
    return names


def _of_names(assignments: Iterable[nodes.Assign]) -> Iterator[Any]:
    return (each for each in assignments if isinstance(each.target, nodes.Name))


def _is_another_field(expression: nodes.Node) -> bool:
    """Whether this is a field such as `message.tool_calls`; a variable that may hold it too is not about content."""
    match expression:
        case nodes.Getattr(attr=name) | nodes.Getitem(arg=nodes.Const(value=str(name))):
            return bool(name != "content")
    return False


def _arguments(tree: nodes.Template) -> Iterator[tuple[str, nodes.Node]]:
    """The parameters of the template's macros, each with something that is passed as it."""
    macros = {macro.name: [parameter.name for parameter in macro.args] for macro in tree.find_all(nodes.Macro)}
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name):
            yield from zip(macros.get(call.node.name, ()), call.args, strict=False)
            yield from ((keyword.key, keyword.value) for keyword in call.kwargs if call.node.name in macros)


def _is_content(expression: nodes.Node | None, names: set[str]) -> bool:
    """Whether the expression is `message.content`, `message['content']` or a variable holding it, possibly filtered or
    sliced."""
    match expression:
        case nodes.Filter(node=inner):
            return _is_content(inner, names)
        case nodes.CondExpr(expr1=first, expr2=second):
            return _is_content(first, names) or _is_content(second, names)
        case nodes.Getattr(attr="content") | nodes.Getitem(arg=nodes.Const(value="content")):
            return True
        case nodes.Getitem(node=inner, arg=nodes.Slice()):
            return _is_content(inner, names)
        case nodes.Name(name=name):
            return name in names
    return False


def with_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with each string content as a single text part."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def with_plain_text(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with text parts as a string, except those of users and assistants: many templates that loop over
    the parts of these write the content of all others, such as a tool's result, as it is."""

    def is_plain(message: Mapping[str, Any]) -> bool:
        content = message.get("content")
        return isinstance(content, list) and all("text" in part for part in content)

    return [
        with_text_content([message])[0]
        if message.get("role") not in ("user", "assistant") and is_plain(message)
        else message
        for message in messages
    ]


def with_text_content(
    messages: list[dict[str, Any]], placeholders: Mapping[str, str] = {}, *, interleaves: bool = False,
    separator: str = "\n",
) -> list[dict[str, Any]]:  # fmt: skip
    """The messages with the text parts of each content joined by newlines.

    Args:
        placeholders: the text for an image, video or audio part, by its type.
        interleaves: whether these stay where they are among the texts, instead of coming first.
        separator: what stands after each of them.
    """

    def joined(parts: list[dict[str, Any]]) -> str:
        ordered = parts if interleaves else sorted(parts, key=lambda part: part.get("type") not in placeholders)
        pieces = [
            (placeholders[part["type"]], separator) if part.get("type") in placeholders else (part["text"], "\n")
            for part in ordered
        ]
        return "".join(text + after for text, after in pieces[:-1]) + "".join(text for text, _ in pieces[-1:])

    return [
        {**message, "content": joined(message["content"])} if isinstance(message.get("content"), list) else message
        for message in messages
    ]
