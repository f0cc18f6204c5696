"""Who may come to the admin port without a key: programs of this machine, and no web page that a browser shows here."""

from __future__ import annotations

import ipaddress

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import plain_error

_LOCAL = "localhost"


class GuardMiddleware:
    """Refuses what browsers send for pages of others, and names that only a page's author would have for this machine.

    A page can have a browser send requests anywhere; it cannot keep `Origin` out of those that change something. A name
    in `Host` that is no address may be one that was made to mean this machine while the page was read.
    """

    def __init__(self, app: ASGIApp, has_keys: bool) -> None:
        """
        Args:
            has_keys: a key is asked for, which no page knows: names in `Host` do not matter then.
        """
        self._app = app
        self._has_keys = has_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on what may come."""
        if scope["type"] == "http" and (why := self._objection(scope)):
            await plain_error(403, why, scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _objection(self, scope: Scope) -> str:
        headers = dict(scope["headers"])
        if b"origin" in headers:
            return "Web pages are not answered here; send no Origin."
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._has_keys and not _is_address(host):
            return "Without --admin-api-key, Host must be an address or localhost."
        return ""


def _is_address(host: str) -> bool:
    """Whether it is an IP address or localhost, with or without a port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower() == _LOCAL
    return True
