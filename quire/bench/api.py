"""The API calls to a server that are not measured."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any

from quire.errors import StartupError
from quire.server_url import split_url
from quire.unix_socket import UnixConnection, socket_path

_SECONDS = 60


class ServerApi:
    """A server, called sequentially over one connection."""

    def __init__(self, url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
        """
        Args:
            url: with scheme and host, optionally followed by a path prefix for the endpoints; or unix:PATH.
            tls: TLS context for an https server.

        Raises:
            StartupError: the URL is malformed.
        """
        parts = split_url("--base-url", url, "http://127.0.0.1:8000")
        host = parts.hostname or ""
        self.url, self._headers = url, {"content-type": "application/json", **headers}
        self._path = parts.path
        self._connection: http.client.HTTPConnection
        if file := socket_path(url):
            self._connection = UnixConnection(file, _SECONDS)
        elif parts.scheme == "https":
            self._connection = http.client.HTTPSConnection(host, parts.port, timeout=_SECONDS, context=tls)
        else:
            self._connection = http.client.HTTPConnection(host, parts.port, timeout=_SECONDS)

    def close(self) -> None:
        """Closes the connection; the next call opens another."""
        self._connection.close()

    def models(self) -> list[str]:
        """Names of the models that the server lists; empty if it lists none.

        Raises:
            StartupError: no server answers there, or it is not ready, or it requires a key.
        """
        status, answer = self._ask("GET", "/v1/models", None)
        if status == 401:
            raise StartupError(f"{self.url} requires a key: set OPENAI_API_KEY or --api-key.")
        if status >= 500:
            raise StartupError(
                f"{self.url} is not ready: it answers with status {status}. Use "
                "--ready-check-timeout-sec to wait for it."
            )
        found = answer.get("data") if status == 200 else None
        return [str(model["id"]) for model in found or () if isinstance(model, dict) and "id" in model]

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Posts a body; returns (status, answer). The answer is empty if it is not a JSON object.

        Raises:
            StartupError: no server answers there.
        """
        return self._ask("POST", path, json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> tuple[int, dict[str, Any]]:
        for may_try_again in (True, False):  # the server may have closed an idle connection
            try:
                self._connection.request(method, self._path + path, body, self._headers)
                response = self._connection.getresponse()
                return response.status, _object(response.read())
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                self._connection.close()
                if not may_try_again:
                    raise self._lost(error) from error
            except (OSError, http.client.HTTPException) as error:
                raise self._lost(error) from error
        raise AssertionError("unreachable")

    def _lost(self, error: Exception) -> StartupError:
        return StartupError(
            f"No server answers at {self.url} ({error}). Start one with `quire serve MODEL`, or name another with "
            "--base-url or --host and --port; --ready-check-timeout-sec waits for one that is starting."
        )


def _object(content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
