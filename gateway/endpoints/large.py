"""Runs work that is short for an ordinary request but long for a large one; for large ones, in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from gateway.context import context_of
from gateway.errors import json_bytes, json_response, json_text_response

P = ParamSpec("P")
T = TypeVar("T")

# Bytes of a body, and tokens of an answer, that take about as long to process as starting a thread.
LARGE_BODY = 32 * 1024
LARGE_ANSWER = 1000


async def beside(request: Request, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `work`, whose duration grows with the body's size, in a thread if the body is large.

    Raises:
        Overloaded: too many large requests are in progress.
    """
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) < LARGE_BODY:
        return work(*args, **kwargs)
    return await context_of(request).large_requests.run(work, *args, **kwargs)


async def answer(request: Request, num_tokens: int, make: Callable[[], Any]) -> Response:
    """Returns a JSON response, built in a thread if it is large.

    Args:
        num_tokens: approximate size of the answer.
        make: builds the content.
    """
    if num_tokens < LARGE_ANSWER:
        return json_response(make())
    return json_text_response(await context_of(request).large_requests.run(lambda: json_bytes(make())))
