"""The process that renders chat templates: a request on stdin, an answer on stdout, as length-prefixed JSON.

It is limited in memory, kills itself when a rendering takes too long, and ends with its parent.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO

from tokenizer_svc.chat_template import ChatTemplates, TemplateRejection

HEADER = struct.Struct("!I")

_MAX_MEMORY_BYTES = 2**30
# Beyond the parent's own time limit: for a parent that is not there any more.
_GRACE_SECONDS = 1.0


def main() -> None:
    """Answers requests until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    start = read(requests)
    if start is None:
        return
    templates = ChatTemplates(start["templates"], start["special_tokens"], start["max_chars"])
    while (request := read(requests)) is not None:
        signal.setitimer(signal.ITIMER_REAL, start["timeout_seconds"] + _GRACE_SECONDS)  # SIGALRM ends the process
        answer = _answer(templates, request, start["max_messages"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(pack(answer))
        answers.flush()


def _answer(templates: ChatTemplates, request: dict[str, Any], max_messages: int) -> dict[str, str]:
    try:
        messages = _messages(request.pop("messages_json"), max_messages)
        return {"text": templates.render(messages, request.pop("tools"), **request)}
    except TemplateRejection as error:
        return {"error": str(error)[:2000]}


def _messages(text: str, most: int) -> list[dict[str, Any]]:
    """Parsed here and not where the request came in: it takes long for a long conversation."""
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise TemplateRejection(f"messages is not valid JSON: {error}") from error
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise TemplateRejection("messages must be a list of objects.")
    if not 1 <= len(messages) <= most:
        raise TemplateRejection(f"There are {len(messages)} messages; 1 to {most} can be rendered.")
    return messages


def pack(message: dict[str, Any]) -> bytes:
    """A message as it goes through a pipe."""
    body = json.dumps(message).encode()
    return HEADER.pack(len(body)) + body


def read(pipe: BinaryIO) -> dict[str, Any] | None:
    """The next message; None at the end."""
    header = pipe.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    message: dict[str, Any] = json.loads(pipe.read(HEADER.unpack(header)[0]))
    return message


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # nobody waits for the answer any more
        os._exit(0)
