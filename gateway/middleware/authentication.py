"""API keys: every path needs one but the health probes. Judged on the raw path, before anything is routed."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import error_response
from quire.errors import Unauthenticated

PUBLIC_PATHS = frozenset((b"/health", b"/livez", b"/readyz", b"/ping"))


class AuthenticationMiddleware:
    """Denies by default. Puts the tenant, an HMAC of the key, in `scope["state"]["tenant"]`."""

    def __init__(self, app: ASGIApp, api_keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes lifespan events, public paths and authenticated requests on."""
        if scope["type"] == "lifespan" or scope.get("raw_path") in PUBLIC_PATHS:
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http" or not (tenant := self._authenticate(scope)):
            error = Unauthenticated("This server needs an API key: send `Authorization: Bearer <key>`.")
            response = error_response(error)
            response.headers["www-authenticate"] = "Bearer"
            await response(scope, receive, send)
            return
        # One key alone needs no wall inside the cache.
        scope["state"]["tenant"] = tenant if len(self._digests) > 1 else ""
        await self._app(scope, receive, send)

    def _authenticate(self, scope: Scope) -> str:
        """The tenant of the request's key; empty when the key is not known. Compares with all keys, always."""
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, key = given.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if kind.lower() != b"bearer" or not any(matches):
            return ""
        return hmac.new(digest, b"quire.tenant", hashlib.sha256).hexdigest()
