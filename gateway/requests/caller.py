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
        InvalidRequest: one of the headers is malformed.
    """
    return Caller(
        cache_salt=_cache_salt(request.scope["state"].get("cache_tenant", ""), body.cache_salt or ""),
        tenant=tenant_of(request),
        session_id=_header(request, _SESSION_HEADER) or body.session_id or body.prompt_cache_key or body.user or "",
    )


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
