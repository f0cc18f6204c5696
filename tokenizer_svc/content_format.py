"""Detects whether a chat template expects a message's content as a string or as OpenAI's list of parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jinja2
from jinja2 import nodes


def iterates_over_content(template: str, environment: jinja2.Environment) -> bool:
    """Whether the template loops over the content of a message, or over a variable assigned from it.

    Raises:
        jinja2.TemplateSyntaxError: it is not valid Jinja.
    """
    tree = environment.parse(template)
    names = set(_names_of_content(tree))
    return any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def _names_of_content(tree: nodes.Template) -> Iterator[str]:
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, set()):
            yield assignment.target.name


def _is_content(expression: nodes.Node | None, names: set[str]) -> bool:
    """Whether the expression is `message.content`, `message['content']` or a variable holding it, possibly filtered or
    sliced."""
    match expression:
        case nodes.Filter(node=inner):
            return _is_content(inner, names)
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


def with_text_content(
    messages: list[dict[str, Any]], placeholders: Mapping[str, str] = {}, *, interleaves: bool = False
) -> list[dict[str, Any]]:
    """The messages with the text parts of each content joined by newlines.

    Args:
        placeholders: the text for an image, video or audio part, by its type.
        interleaves: whether these stay where they are among the texts, instead of coming first.
    """

    def joined(parts: list[dict[str, Any]]) -> str:
        ordered = parts if interleaves else sorted(parts, key=lambda part: part.get("type") not in placeholders)
        return "\n".join(
            placeholders[part["type"]] if part.get("type") in placeholders else part["text"] for part in ordered
        )

    return [
        {**message, "content": joined(message["content"])} if isinstance(message.get("content"), list) else message
        for message in messages
    ]
