"""Sends a batch's requests to a server, many at a time, retrying each until it has an answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec

from quire.batch.lines import BatchInput, BatchLine, BatchResponse, BatchResult
from quire.batch.results import Results

# Endpoints that take forms: a line has the form's fields, and instead of a file the URL of one.
_FORMS = frozenset(("/v1/audio/transcriptions", "/v1/audio/translations"))
# Statuses of a server that is full or restarting; it is asked again after a pause, which grows up to the longest.
_LATER = frozenset((429, 502, 503))
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 10.0
# A request that the server refuses for this long is recorded as refused.
_PATIENCE_SECONDS = 600.0


class BatchSender:
    """Sends the requests without an answer."""

    def __init__(self, client: httpx.AsyncClient, most: int, tell: Callable[[BatchResult], None]) -> None:
        """
        Args:
            client: an HTTP client with the server as its base URL.
            most: maximum number of concurrent requests.
            tell: called with each answer once it is stored.
        """
        self._client = client
        self._most = most
        self._tell = tell

    async def run(self, requests: BatchInput, results: Results) -> None:
        """Returns once every request has an answer, even if that is a failure.

        Raises:
            StartupError: an answer cannot be stored.
        """
        waiting = requests.read(results.missing)
        try:
            async with asyncio.TaskGroup() as senders:
                for _ in range(self._most):
                    senders.create_task(self._send_all(waiting, results))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None  # many may fail at the same time, all for the same reason

    async def _send_all(self, waiting: Iterator[tuple[int, BatchLine]], results: Results) -> None:
        for index, line in waiting:  # shared by all senders
            result = await self._answer(line)
            results.add(index, result)
            self._tell(result)

    async def _answer(self, line: BatchLine) -> BatchResult:
        pause, patience = _FIRST_PAUSE_SECONDS, _PATIENCE_SECONDS
        while True:
            result, is_final = await self._ask(line)
            if is_final or patience <= 0:
                return result
            await asyncio.sleep(pause)
            patience -= pause
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _request(self, line: BatchLine, request_id: str) -> httpx.Request:
        headers = {"x-request-id": request_id}
        if line.url not in _FORMS:
            headers["content-type"] = "application/json"
            return self._client.build_request("POST", line.url, content=bytes(line.body), headers=headers)
        fields = msgspec.json.decode(line.body, type=dict[str, Any])
        parts = [(name, (None, _form_value(value))) for name, value in fields.items() if value is not None]
        return self._client.build_request("POST", line.url, files=parts, headers=headers)

    async def _ask(self, line: BatchLine) -> tuple[BatchResult, bool]:
        """Sends a request once; returns its result, and whether that is final."""
        request_id = uuid.uuid4().hex
        name = f"quire-{request_id}"
        try:
            answer = await self._client.send(self._request(line, request_id))
        except httpx.ReadTimeout:
            return BatchResult(name, line.custom_id, None, {"message": "The server did not answer in time."}), True
        except httpx.TransportError as error:
            message = f"The server cannot be reached: {error or type(error).__name__}."
            return BatchResult(name, line.custom_id, None, {"message": message}), False
        body = _parsed(answer)
        response = BatchResponse(answer.status_code, request_id, body)
        if answer.is_success:
            return BatchResult(name, line.custom_id, response), True
        told = body.get("error", body) if isinstance(body, dict) else {"message": str(body)}
        return BatchResult(name, line.custom_id, response, told), answer.status_code not in _LATER


def _form_value(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _parsed(answer: httpx.Response) -> object:
    try:
        return msgspec.json.decode(answer.content)
    except msgspec.DecodeError:
        return answer.text
