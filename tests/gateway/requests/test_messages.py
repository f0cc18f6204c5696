"""Messages in the form that chat templates receive."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from gateway.requests.messages import MediaUrl, media_kinds, template_messages, texts_of
from quire.errors import InvalidRequest
from quire.media import MediaKind


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


@pytest.mark.parametrize("arguments", ['{"a": "b', "A", "[1]", "1", "null", [1], 1, '{"a": ' + "[" * 100_000])
def test_a_call_whose_arguments_are_no_object_goes_on_without_them(arguments: Any) -> None:
    """As vLLM does: a client sends what a model wrote, such as a call that was cut off, with each turn that follows."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = converted({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message["tool_calls"] == [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}]


@pytest.mark.parametrize(
    "calls",
    [
        1,
        [1],
        [{"id": "1"}],
        [{"function": "f"}],
        [{"function": {"arguments": "{}"}}],
        [{"type": "custom", "custom": {}}],
    ],
)
def test_calls_that_are_none_are_refused(calls: Any) -> None:
    with pytest.raises(InvalidRequest, match="tool_calls must be a list of calls"):
        converted({"role": "assistant", "tool_calls": calls})


def test_messages_that_are_nested_too_deeply_are_refused() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(InvalidRequest, match="messages are nested too deeply"):
        template_messages([{"role": "user", "content": "A", "more": nested}])


def test_parts_of_other_apis_are_what_they_are_there() -> None:
    """Texts and images of the Responses API, files of OpenAI's chats, and thinking as Mistral's clients send it."""
    message = {
        "role": "user",
        "content": [{"type": "input_text", "text": "A"}, {"type": "output_text", "text": "B", "annotations": []},
                    {"type": "input_image", "image_url": "a:1", "detail": "auto"},
                    {"type": "thinking", "thinking": "C"},
                    {"type": "file", "file": {"filename": "d.txt", "file_data": "data:text/plain;base64,RA=="}}],
    }  # fmt: skip
    found = template_messages([message])
    (sent,) = msgspec.json.decode(found.json)
    assert sent["content"] == [
        {"type": "text", "text": "A"}, {"type": "text", "text": "B"}, {"type": "image"}, {"type": "text", "text": "C"},
        {"type": "text", "text": '<document title="d.txt">\nD\n</document>\n'},
    ]  # fmt: skip
    assert found.media == (MediaUrl("a:1", "messages[0].content[2]", MediaKind.IMAGE),)
    assert media_kinds([message]) == {MediaKind.IMAGE}


@pytest.mark.parametrize("thinking", ["AB", [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}], ["AB"]])
def test_what_an_assistant_thought_may_be_in_its_content(thinking: Any) -> None:
    parts = [{"type": "thinking", "thinking": thinking, "closed": True}, {"type": "text", "text": "C"}]
    message = converted({"role": "assistant", "content": parts})
    assert (message["reasoning"], message["content"]) == ("AB", [{"type": "text", "text": "C"}])
    assert texts_of({"role": "assistant", "content": parts}) == ["C"]
    assert converted({"role": "assistant", "reasoning": "D", "content": parts})["reasoning"] == "D"


@pytest.mark.parametrize("calls", [None, []])
def test_fields_that_are_null_are_left_out(calls: Any) -> None:
    """As OpenAI's client sends an answer back; templates take the fields' presence for calls."""
    answered = {"role": "assistant", "content": "Hi", "refusal": None, "audio": None, "tool_calls": calls}
    assert converted(answered) == {"role": "assistant", "content": "Hi"}


def test_images_videos_and_audio_are_told_apart_from_texts_and_listed_in_their_order() -> None:
    found = template_messages(
        [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a:1", "detail": "low"}}, "Look",
                                         {"type": "video_url", "video_url": {"url": "a:2"}}]},
            {"role": "assistant", "content": "So?"},
            {
                "role": "tool",
                "content": [{"type": "text", "text": "Made"}, {"type": "video_url", "video_url": "a:3", "uuid": "x"},
                            {"type": "image_url", "image_url": "a:4", "uuid": "x"}],
            },
            {
                "role": "user",
                "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}, "Hear",
                            {"type": "audio_url", "audio_url": {"url": "a:5"}},
                            {"type": "audio_url", "audio_url": "a:6"}],
            },
        ]
    )  # fmt: skip
    assert msgspec.json.decode(found.json) == [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Look"}, {"type": "video"}]},
        {"role": "assistant", "content": "So?"},
        {"role": "tool", "content": [{"type": "text", "text": "Made"}, {"type": "video"}, {"type": "image"}]},
        {
            "role": "user",
            "content": [{"type": "audio"}, {"type": "text", "text": "Hear"}, {"type": "audio"}, {"type": "audio"}],
        },
    ]
    assert found.media == (
        MediaUrl("a:1", "messages[0].content[0]", MediaKind.IMAGE),
        MediaUrl("a:2", "messages[0].content[2]", MediaKind.VIDEO),
        MediaUrl("a:3", "messages[2].content[1]", MediaKind.VIDEO),
        MediaUrl("a:4", "messages[2].content[2]", MediaKind.IMAGE),
        MediaUrl("data:audio/mp3;base64,AAAA", "messages[3].content[0]", MediaKind.AUDIO),
        MediaUrl("a:5", "messages[3].content[2]", MediaKind.AUDIO),
        MediaUrl("a:6", "messages[3].content[3]", MediaKind.AUDIO),
    )


def test_images_may_come_as_embeddings() -> None:
    tensors = {"image_embeds": "AAAA", "image_grid_thw": "BBBB"}
    content = [{"type": "image_embeds", "image_embeds": "AAAA", "uuid": "x"}, "Look",
               {"type": "image_embeds", "image_embeds": tensors}]  # fmt: skip
    messages = [{"role": "user", "content": content}]
    found = template_messages(messages)
    (message,) = msgspec.json.decode(found.json)
    assert message["content"] == [{"type": "image"}, {"type": "text", "text": "Look"}, {"type": "image"}]
    assert found.media == (
        MediaUrl("", "messages[0].content[0]", MediaKind.IMAGE, {"image_embeds": "AAAA"}),
        MediaUrl("", "messages[0].content[2]", MediaKind.IMAGE, tensors),
    )
    assert media_kinds(messages) == {MediaKind.IMAGE}


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url"}, "needs the URL of an image"),
        ({"type": "image_url", "image_url": {}}, "needs the URL of an image"),
        ({"type": "image_url", "image_url": {"url": 5}}, "needs the URL of an image"),
        ({"type": "image_url", "image_url": ["a:1"]}, "needs the URL of an image"),
        ({"type": "video_url", "video_url": 5}, 'needs the URL of a video, as in {"type": "video_url"'),
        ({"type": "video_url", "image_url": {"url": "a:1"}}, "needs the URL of a video"),
        ({"type": "audio_url", "audio_url": None}, 'needs the URL of an audio, as in {"type": "audio_url"'),
        *(
            ({"type": "input_audio", "input_audio": given}, "needs an audio in base64 and its format, as in")
            for given in (
                None,
                "AAAA",
                {"data": "AAAA"},
                {"data": b"", "format": "wav"},
                {"data": "AAAA", "format": 1},
                {"data": "AAAA", "format": ""},
                {"data": "AAAA", "format": "wav;base64,"},
            )
        ),
        (
            {"type": "image"},
            "is of type 'image'; supported are text, input_text, output_text, refusal, thinking, file, image_url, vid",
        ),
        *(
            ({"type": "thinking", "thinking": given}, "has thinking that is neither a string nor a list of text parts")
            for given in (None, 1, [1], [{"type": "text"}])
        ),
        *(({"type": "file", "file": given}, ".file has no file_data") for given in (None, "QQ==", {"file_id": "f"})),
        ({"type": "audio_embeds", "audio_embeds": "AAAA"}, "is of type 'audio_embeds'; supported are text, "),
        *(
            ({"type": "image_embeds", "image_embeds": given}, "needs tensors that torch.save wrote, in base64, as in ")
            for given in (None, {}, ["AAAA"], {"image_grid_thw": "AAAA"}, {"image_embeds": "AAAA", "image_grid_thw": 1})
        ),
        (
            {"type": "image_embeds", "image_embeds": {"image_embeds": "AAAA", "image_sizes": "AAAA"}},
            "has the tensor 'image_sizes'; supported are image_embeds and image_grid_thw.",
        ),
        ({"type": ["image_url"]}, "is of type"),
        ({"image_url": {"url": "a:1"}}, "is of type 'None'"),
    ],
)
def test_parts_that_are_none_of_these_are_named(part: dict[str, Any], words: str) -> None:
    place = "messages[0].content[1]" if words.startswith(".") else "messages[0].content[1] "
    with pytest.raises(InvalidRequest, match=re.escape(place + words)) as caught:
        template_messages([{"role": "user", "content": ["Look", part]}])
    assert caught.value.parameter == "messages"


def test_texts_of_a_message_leave_the_rest_out() -> None:
    image, video = {"type": "image_url", "image_url": {"url": "a:1"}}, {"type": "video_url", "video_url": "a:1"}
    audio = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    assert texts_of({"content": [{"type": "text", "text": "A"}, image, "B", video, audio]}) == ["A", "B"]
