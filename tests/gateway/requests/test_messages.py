"""Messages in the form that chat templates receive."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.requests.messages import template_messages


def converted(message: dict[str, Any]) -> Any:
    (found,) = msgspec.json.decode(template_messages([message]))
    return found


@pytest.mark.parametrize("role", ["user", "system", "tool", "assistant"])
def test_no_content_is_an_empty_text(role: str) -> None:
    assert converted({"role": role, "content": None})["content"] == ""
    assert converted({"role": role})["content"] == ""


@pytest.mark.parametrize(
    ("given", "arguments"),
    [({}, {}), ({"arguments": None}, {}), ({"arguments": ""}, {}), ({"arguments": '{"a": 1}'}, {"a": 1}),
     ({"arguments": {"a": 1}}, {"a": 1})],
)  # fmt: skip
def test_a_call_without_arguments_has_an_empty_object_of_them(given: dict[str, Any], arguments: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", **given}}
    message = converted({"role": "assistant", "content": None, "tool_calls": [call]})
    assert (message["content"], message["tool_calls"][0]["function"]["arguments"]) == (None, arguments)
