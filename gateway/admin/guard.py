"""Protects the admin port without a key: programs on this machine may use it, web pages in a browser here may not."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import plain_error

_LOCAL = "localhost"


class GuardMiddleware:
    """Rejects requests that browsers send for web pages, and host names that could be set up for DNS rebinding.

    A page can make a browser send requests anywhere, but cannot keep `Origin` out of requests that change something. A
    name in `Host` that is not an address may have been pointed at this machine while the page was open.
    """

    def __init__(self, app: ASGIApp, has_keys: bool, allowed_hosts: Collection[str]) -> None:
        """
        Args:
            has_keys: whether a key is required, which no page knows; then any name in `Host` is accepted.
            allowed_hosts: names that are accepted without a key.
        """
        self._app = app
        self._has_keys = has_keys
        self._allowed = {_LOCAL, *(name.lower() for name in allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on requests that are allowed."""
        if scope["type"] == "http" and (why := self._objection(scope)):
            await plain_error(403, why, scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _objection(self, scope: Scope) -> str:
        headers = dict(scope["headers"])
        if b"origin" in headers:
            return "Requests from web pages are refused; do not send an Origin header."
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._has_keys and not self._is_allowed(host):
            return "Without a key, the Host header must be an IP address, localhost or a name in --admin-allowed-hosts."
        return ""

    def _is_allowed(self, host: str) -> bool:
        """Whether the host, with or without a port, may be called without a key."""
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.lower() in self._allowed
        return True
