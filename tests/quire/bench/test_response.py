"""Parsing of answers from bytes, however they are split."""

from __future__ import annotations

import pytest

from quire.bench.answer import Answer, EventReader
from quire.bench.response import ResponseReader

EVENTS = (
    b'data: {"choices": [{"text": "Hel"}]}\r\n\r\n: ping\n\ndata:{"choices":[{"text":"lo"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}\n\ndata: [DONE]\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(content: bytes, size: int) -> bytes:
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    return b"".join(b"%x;x=y\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def read(wire: bytes, step: int) -> tuple[ResponseReader, Answer]:
    answer = Answer(0)
    reader = ResponseReader(EventReader(answer).feed)
    for start in range(0, len(wire), step):
        reader.feed(wire[start : start + step])
    return reader, answer


@pytest.mark.parametrize("step", [1, 2, 7, 64, 10_000])
@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_chunks_and_packets_are_cut_anywhere(step: int, size: int) -> None:
    reader, answer = read(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(EVENTS, size), step)
    assert reader.is_complete and reader.keeps_connection
    assert (answer.text, answer.prompt_tokens, answer.output_tokens, len(answer.times)) == ("Hello", 4, 3, 2)


def test_a_body_of_known_length() -> None:
    reader, answer = read(HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(EVENTS), EVENTS), 13)
    assert reader.is_complete and not reader.keeps_connection and answer.text == "Hello"


def test_a_body_until_the_connection_ends() -> None:
    reader, answer = read(b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"\r\n" + EVENTS, 9)
    assert not reader.is_complete and answer.text == "Hello"
    reader.end()
    assert reader.is_complete and not reader.keeps_connection


def test_a_chat_begins_with_its_first_token() -> None:
    answer = Answer(0)
    events = EventReader(answer)
    events.feed(b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n')
    assert answer.times == []
    for delta in (b'"reasoning_content": "Hm", "tool_calls": null', b'"content": "Yes", "reasoning": null'):
        events.feed(b'data: {"choices": [{"delta": {%b}}], "error": null}\n\n' % delta)
    events.feed(b'data: {"choices": [{"delta": {"tool_calls": []}, "finish_reason": "stop"}], "usage": null}\n\n')
    answer.finish()
    assert (answer.text, answer.output_tokens, answer.succeeded) == ("HmYes", 2, True)


def test_an_error_within_the_stream_is_the_answers() -> None:
    answer = Answer(0)
    EventReader(answer).feed(b'data: {"choices": [{"text": "a"}]}\n\ndata: {"error": {"message": "lost"}}\n\n')
    answer.finish()
    assert answer.error == '{"message": "lost"}'


@pytest.mark.parametrize("wire", [b"SSH-2.0-OpenSSH\r\n\r\n", HEAD + b"transfer-encoding: chunked\r\n\r\nnothing\r\n"])
def test_what_is_no_http_is_refused(wire: bytes) -> None:
    with pytest.raises(ValueError):
        read(wire, 10_000)
