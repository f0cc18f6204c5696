"""Work that is short for an ordinary request and long for a large one: that of a large one is done in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from gateway.context import context_of
from gateway.errors import json_bytes, json_response, json_text_response

P = ParamSpec("P")
T = TypeVar("T")

# Bytes of a body, and tokens of an answer: a thread takes about as long to begin as these take.
LARGE_BODY = 32 * 1024
LARGE_ANSWER = 1000


async def beside(request: Request, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` makes of a request, which takes the longer the larger the body is.

    Raises:
        Overloaded: too many large requests are being worked on.
    """
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) < LARGE_BODY:
        return work(*args, **kwargs)
    return await context_of(request).large_requests.run(work, *args, **kwargs)


async def answer(request: Request, num_tokens: int, make: Callable[[], Any]) -> Response:
    """The answer in JSON.

    Args:
        num_tokens: how much it tells of, roughly.
        make: the content.
    """
    if num_tokens < LARGE_ANSWER:
        return json_response(make())
    return json_text_response(await context_of(request).large_requests.run(lambda: json_bytes(make())))
