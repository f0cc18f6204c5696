"""Messages in the form that chat templates receive."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from gateway.requests.messages import ImageUrl, template_messages, texts_of
from quire.errors import InvalidRequest


def converted(message: dict[str, Any]) -> Any:
    (found,) = msgspec.json.decode(template_messages([message]).json)
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


def test_images_are_told_apart_from_texts_and_listed_in_their_order() -> None:
    found = template_messages(
        [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a:1", "detail": "low"}}, "Look"]},
            {"role": "assistant", "content": "So?"},
            {
                "role": "tool",
                "content": [{"type": "text", "text": "Made"}, {"type": "image_url", "image_url": "a:2", "uuid": "x"}],
            },
        ]
    )
    assert msgspec.json.decode(found.json) == [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Look"}]},
        {"role": "assistant", "content": "So?"},
        {"role": "tool", "content": [{"type": "text", "text": "Made"}, {"type": "image"}]},
    ]
    assert found.images == (ImageUrl("a:1", "messages[0].content[0]"), ImageUrl("a:2", "messages[2].content[1]"))


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url"}, "needs the URL of an image"),
        ({"type": "image_url", "image_url": {}}, "needs the URL of an image"),
        ({"type": "image_url", "image_url": {"url": 5}}, "needs the URL of an image"),
        ({"type": "image_url", "image_url": ["a:1"]}, "needs the URL of an image"),
        ({"type": "image"}, "is of type 'image'; Quire's models read text and images only"),
        ({"type": "video_url", "video_url": {"url": "a:1"}}, "is of type 'video_url'"),
        ({"type": "input_audio", "input_audio": {"data": ""}}, "is of type 'input_audio'"),
        ({"image_url": {"url": "a:1"}}, "is of type 'None'"),
    ],
)
def test_parts_that_are_neither_text_nor_image_are_named(part: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(f"messages[0].content[1] {words}")) as caught:
        template_messages([{"role": "user", "content": ["Look", part]}])
    assert caught.value.parameter == "messages"


def test_texts_of_a_message_leave_images_out() -> None:
    image = {"type": "image_url", "image_url": {"url": "a:1"}}
    assert texts_of({"content": [{"type": "text", "text": "A"}, image, "B"]}) == ["A", "B"]
