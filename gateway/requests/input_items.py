"""Paginates the input items of a stored response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.protocol.responses import InputItems
from gateway.requests.response_items import Item
from quire.bounds import Bound
from quire.errors import InvalidRequest

_LIMIT = Bound(1, 100)
_USUAL_LIMIT = "20"
_ORDERS = ("asc", "desc")
_PREFIXES = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco",
    "custom_tool_call": "ctc", "custom_tool_call_output": "ctco", "compaction": "cmp",
}  # fmt: skip


def page_of(items: Sequence[Item], identity: str, asked: Mapping[str, str]) -> InputItems:
    """Returns a page of a response's items.

    Args:
        identity: the response's id.
        asked: the query parameters: `limit`, `order`, and `after`, the id of an item.

    Raises:
        InvalidRequest: a parameter is malformed, or `after` is not the id of an item.
    """
    limit, order, after = asked.get("limit", _USUAL_LIMIT), asked.get("order", "desc"), asked.get("after")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 10):
        raise InvalidRequest(f"limit is {limit[:50]!r}; it must be a number.", parameter="limit")
    _LIMIT.check("limit", int(limit))
    if order not in _ORDERS:
        raise InvalidRequest(f"order is {order[:50]!r}; it must be asc or desc.", parameter="order")
    told = [told_item(item, identity, index) for index, item in enumerate(items)]
    if order == "desc":
        told.reverse()
    if after is not None:
        told = told[_place(told, after) + 1 :]
    page = told[: int(limit)]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return InputItems(page, first, last, len(told) > len(page))


def told_item(item: Item, identity: str, index: int) -> dict[str, Any]:
    """Converts an item to OpenAI's format: with a type, an id and a status, and a message's text as parts.

    Args:
        identity: of the response that it belongs to, in which it has the number `index`.
    """
    kind = str(item.get("type", "message"))
    own = f"{_PREFIXES.get(kind, 'item')}_{identity.removeprefix('resp_')}_{index}"
    told = {"status": "completed", **item, "type": kind, "id": item.get("id") or own}
    if kind == "message" and isinstance(text := item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        told["content"] = [{"type": part, "text": text}]
    return told


def _place(items: Sequence[Item], identity: str) -> int:
    found = next((index for index, item in enumerate(items) if item["id"] == identity), None)
    if found is None:
        raise InvalidRequest(f"after is {identity[:64]!r}, which is not an item of this response.", parameter="after")
    return found
