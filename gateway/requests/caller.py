"""Who asks: as much of it as the services behind the gateway get to know. None of it is ever logged."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from starlette.requests import Request

from gateway.protocol.common import GenerationFields
from quire.errors import InvalidRequest
from quire.rpc.context import is_request_id

_TENANT_HEADER = "x-tenant"
_SESSION_HEADER = "x-session-id"
_RANK_HEADER = "x-data-parallel-rank"
_LOAD_HEADER = "endpoint-load-metrics-format"


@dataclass(frozen=True)
class Caller:
    """One request's."""

    # Keeps cached prefixes apart: those who share it share them.
    cache_salt: str = ""
    # A hash of the API key, or of what the caller says without one; empty for nobody in particular.
    tenant: str = ""
    # Names the conversation; empty for none.
    session_id: str = ""


def caller_of(request: Request, body: GenerationFields) -> Caller:
    """Who sent a request whose fields are checked.

    Raises:
        InvalidRequest: one of the headers is malformed, or asks for what Quire does not do.
    """
    check_rank(request)
    load_format(request)
    return Caller(
        cache_salt=_cache_salt(request.scope["state"].get("cache_tenant", ""), body.cache_salt or ""),
        tenant=tenant_of(request),
        session_id=_header(request, _SESSION_HEADER) or body.session_id or body.prompt_cache_key or body.user or "",
    )


def check_rank(request: Request) -> None:
    """
    Raises:
        InvalidRequest: a header names the rank that is to work on the request.
    """
    if _RANK_HEADER in request.headers:
        raise InvalidRequest(
            f"The header {_RANK_HEADER} is refused: the router picks the worker. Leave it out.", parameter=_RANK_HEADER
        )


def load_format(request: Request) -> str:
    """How a request wants to be told of the load with its answer: TEXT, JSON, or empty for not at all.

    Raises:
        InvalidRequest: in no way that there is.
    """
    form = request.headers.get(_LOAD_HEADER, "").upper()
    if form not in ("", "TEXT", "JSON"):
        raise InvalidRequest(
            f"The header {_LOAD_HEADER} is {form[:50]!r}; it must be TEXT or JSON.", parameter=_LOAD_HEADER
        )
    return form


def tenant_of(request: Request) -> str:
    """See Caller; raises as `caller_of`."""
    state = request.scope["state"]
    tenant: str = state["tenant"] if "tenant" in state else tenant_hash(_header(request, _TENANT_HEADER))
    return tenant


def tenant_hash(secret: str) -> str:
    """What stands for an API key, or a tenant's name, behind the gateway: 16 hexadecimal digits; empty for none."""
    return hashlib.sha256(secret.encode()).hexdigest()[:16] if secret else ""


def _header(request: Request, name: str) -> str:
    value = request.headers.get(name, "")
    if value and not is_request_id(value):
        raise InvalidRequest(f"The header {name} needs 1 to 128 of A-Z a-z 0-9 . _ -", parameter=name)
    return value


def _cache_salt(tenant: str, salt: str) -> str:
    """The tenant's key and the request's own salt, hashed together."""
    if not tenant:
        return salt
    return hmac.new(tenant.encode(), salt.encode(), hashlib.sha256).hexdigest()
