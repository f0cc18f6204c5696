"""API keys: every path except the health probes and the page needs one, and `/metrics` unless that is opened too.

The check uses the raw path below the proxy's prefix, before routing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Sequence
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api_keys import ApiKeys
from gateway.errors import error_response
from gateway.middleware.root_path import path_below_root
from gateway.page_assets import PAGE_ASSETS
from gateway.requests.caller import tenant_hash
from quire.errors import Unauthenticated

_PAGE = (b"/", *(f"/page/{name}".encode() for name in PAGE_ASSETS))
PUBLIC_PATHS = frozenset((b"/health", b"/livez", b"/readyz", b"/ping", *_PAGE))


def public_paths(metrics_without_key: bool) -> frozenset[bytes]:
    """The paths of the main port that need no key."""
    return PUBLIC_PATHS | {b"/metrics"} if metrics_without_key else PUBLIC_PATHS


class AuthenticationMiddleware:
    """Rejects requests without a known key, and sets in `scope["state"]` what `identify` returns."""

    def __init__(self, app: ASGIApp, api_keys: ApiKeys, public_paths: Collection[bytes]) -> None:
        """
        Args:
            public_paths: paths that need no key.
        """
        self._app = app
        self._public_paths = public_paths
        self._api_keys = api_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on lifespan events, public paths and authenticated requests."""
        if scope["type"] == "lifespan" or path_below_root(scope) in self._public_paths:
            await self._app(scope, receive, send)
            return
        try:
            scope["state"].update(identify(self._api_keys, scope["headers"]))
        except Unauthenticated as error:
            response = error_response(error, scope)
            response.headers["www-authenticate"] = "Bearer"
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


def identify(api_keys: ApiKeys, headers: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
    """Returns the `tenant`, a hash of the key in the headers; the `cache_tenant`, an HMAC of the key that separates the
    cached prefixes of different keys; and the `named_key`, None for a key without a name.

    Raises:
        Unauthenticated: there is no key, or it is not known.
    """
    key = _given_key(headers)
    is_known, named_key = api_keys.find(hashlib.sha256(key).digest())
    if not key or not is_known:
        raise Unauthenticated(
            "This server needs an API key: send `Authorization: Bearer <key>`, or `x-api-key: <key>`."
        )
    # With a single key, the cache needs no separation.
    cache_tenant = _cache_tenant(key) if api_keys.are_many else ""
    return {"tenant": tenant_hash(key.decode("latin-1")), "cache_tenant": cache_tenant, "named_key": named_key}


def _given_key(given: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Returns the key as sent by OpenAI's clients or, failing that, by Anthropic's; empty if there is none."""
    headers = dict(reversed(given))
    if b"authorization" not in headers:
        return bytes(headers.get(b"x-api-key", b"")).strip()
    kind, _, key = headers[b"authorization"].partition(b" ")
    return bytes(key).strip() if kind.lower() == b"bearer" else b""


def _cache_tenant(key: bytes) -> str:
    return hmac.new(hashlib.sha256(key).digest(), b"quire.tenant", hashlib.sha256).hexdigest()
