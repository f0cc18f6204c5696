"""Reads nested lists and objects incrementally as JSON, whatever their keys and other values look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.tool_parsers.scanner import NotACallError, Scanner, Sink, Steps

Reader = Callable[[], Steps[None]]


def read_nested(
    text: Scanner, sink: Sink, brackets: Mapping[str, str], read_key: Reader, read_leaf: Reader
) -> Steps[None]:
    """Reads a value. Nesting costs one list entry per level.

    Args:
        brackets: opening → closing brackets; braces are those of objects.
        read_key: reads a key, and passes it on as a JSON string.
        read_leaf: reads a value that begins with none of the brackets, and passes it on as JSON.

    Raises:
        NotACallError: it is not of this form.
    """
    open_brackets: list[str] = []

    def read_item() -> Steps[None]:
        """Reads a value; of one in brackets, only the part up to where a further value or the closing one may come."""
        while (first := (yield from text.peek_past_space())) in brackets:
            open_brackets.append(text.take(1))
            sink("{" if first == "{" else "[")
            if (yield from text.peek_past_space()) == brackets[first]:
                return
            if first == "{":
                yield from read_named()
        yield from read_leaf()

    def read_named() -> Steps[None]:
        yield from read_key()
        yield from text.peek_past_space()
        yield from text.expect(":")
        sink(": ")

    yield from read_item()
    while open_brackets:
        closing = brackets[open_brackets[-1]]
        following = yield from text.peek_past_space()
        if following == ",":
            text.take(1)
            following = yield from text.peek_past_space()
            if following != closing:
                sink(", ")
                if closing == "}":
                    yield from read_named()
                yield from read_item()
                continue
        if following != closing:
            raise NotACallError
        text.take(1)
        sink("}" if closing == "}" else "]")
        open_brackets.pop()
