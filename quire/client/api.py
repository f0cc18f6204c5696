"""The few API calls of the command-line clients, with the standard library's HTTP client."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from quire.errors import StartupError
from quire.server_url import split_url
from quire.unix_socket import HOST, UnixConnection, socket_path

_TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Api:
    """A server's OpenAI API.

    Attributes:
        advice: advice for the user if no server answers.
        flag: the option that gave the address.
        example: an example of an address.

    Raises:
        click.ClickException: the address is malformed.
    """

    url: str
    api_key: str | None
    advice: str = "Start one with `quire serve MODEL`."
    flag: str = "--url"
    example: str = "http://localhost:8000/v1"

    def __post_init__(self) -> None:
        try:
            split_url(self.flag, self.url, self.example)
        except StartupError as error:
            raise click.ClickException(str(error)) from error

    def first_model(self) -> str:
        """Name of the first model that the server lists."""
        with self._open("/models", None) as response:
            models = json.load(response)["data"]
        return str(models[0]["id"])

    def post(self, path: str) -> dict[str, Any]:
        """Makes a call without a body; returns the answer.

        Raises:
            click.ClickException: see `stream`.
        """
        with self._open(path, {}) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Makes a streaming call; yields the choices of its events.

        Raises:
            click.ClickException: the server refused the request, or failed midway.
        """
        with self._open(path, {**body, "stream": True}) as response:
            for line in response:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise click.ClickException(event["error"]["message"])
                yield from event["choices"]

    def _open(self, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"content-type": "application/json"}
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        data = json.dumps(body).encode() if body is not None else None
        base = f"http://{HOST}/v1" if socket_path(self.url) else self.url.rstrip("/")
        request = urllib.request.Request(base + path, data, headers)  # noqa: S310  (the user's own URL)
        try:
            return _opener(self.url).open(request, timeout=_TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            raise click.ClickException(_message(error)) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)  # urllib wraps the original error
            raise click.ClickException(f"No server answers at {self.url} ({reason}). {self.advice}") from error


class _UnixHandler(urllib.request.HTTPHandler):
    """Opens http URLs over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(lambda _host, timeout=0.0, **_: UnixConnection(self._path, timeout), req)


def _opener(url: str) -> urllib.request.OpenerDirector:
    if path := socket_path(url):
        return urllib.request.build_opener(_UnixHandler(path), urllib.request.ProxyHandler({}))
    return urllib.request.build_opener()


def _message(error: urllib.error.HTTPError) -> str:
    """The server's own message if it sent one."""
    try:
        return f"{error.code}: {json.load(error)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{error.code}: {error.reason}"
