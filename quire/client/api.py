"""The few calls that the command-line clients make, over the standard library's HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

_TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Api:
    """A server's OpenAI API."""

    url: str
    api_key: str | None

    def first_model(self) -> str:
        """The first model that the server lists."""
        with self._open("/models", None) as response:
            models = json.load(response)["data"]
        return str(models[0]["id"])

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The choices' events of a streaming call.

        Raises:
            click.ClickException: the server refused the request or failed on the way.
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
        request = urllib.request.Request(self.url.rstrip("/") + path, data, headers)  # noqa: S310  (the user's own URL)
        try:
            return urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)  # noqa: S310
        except urllib.error.HTTPError as error:
            raise click.ClickException(_message(error)) from error
        except urllib.error.URLError as error:
            raise click.ClickException(
                f"No server answers at {self.url} ({error.reason}). Start one with `quire serve MODEL`."
            ) from error


def _message(error: urllib.error.HTTPError) -> str:
    """The server's own message where it sent one."""
    try:
        return f"{error.code}: {json.load(error)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{error.code}: {error.reason}"
