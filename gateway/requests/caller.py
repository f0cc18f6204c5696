"""Identity of the caller, as far as the services behind the gateway see it. It is never logged."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass

from starlette.requests import Request

from gateway.protocol.common import GenerationFields
from gateway.requests.named_key import Admission
from quire.bounds import PRIORITY_BOUND
from quire.errors import InvalidRequest
from quire.rpc.context import is_request_id

_TENANT_HEADER = "x-tenant"
_SESSION_HEADER = "x-session-id"
_RANK_HEADER = "x-data-parallel-rank"
_PRIORITY_HEADER = "x-vllm-priority"
_LOAD_HEADER = "endpoint-load-metrics-format"

_NUMBER = re.compile(r"-?[0-9]{1,10}")


@dataclass(frozen=True)
class Caller:
    """The caller of one request."""

    # Requests share cached prefixes only if their salts are equal.
    cache_salt: str = ""
    # A hash of the API key, or of the tenant header if there is no key; empty for anonymous callers.
    tenant: str = ""
    # Identifies the conversation; empty for none.
    session_id: str = ""
    # What the request asks for, as far as its key allows it.
    priority: int = 0
    # None for a key without a name, or no key.
    admission: Admission | None = None


def caller_of(request: Request, body: GenerationFields) -> Caller:
    """Returns the caller of a request whose fields have been checked.

    Raises:
        InvalidRequest: a header is malformed, or asks for something unsupported; or the key does not allow the
            priority.
    """
    check_rank(request)
    load_format(request)
    return Caller(
        cache_salt=_cache_salt(request.scope["state"].get("cache_tenant", ""), body.cache_salt or ""),
        tenant=tenant_of(request),
        session_id=_header(request, _SESSION_HEADER) or body.session_id or body.prompt_cache_key or body.user or "",
        priority=priority_of(request, body.priority),
        admission=admission_of(request),
    )


def admission_of(request: Request) -> Admission | None:
    """Returns the admission of the request; None if its key has no name, and so no limits."""
    admission: Admission | None = request.scope["state"].get("admission")
    return admission


def priority_of(request: Request, asked: int) -> int:
    """Returns the priority of a request that asks for one. A header, which proxies set, takes precedence.

    Raises:
        InvalidRequest: its key does not allow it, or the header is malformed.
    """
    if (text := request.headers.get(_PRIORITY_HEADER)) is not None:
        if not _NUMBER.fullmatch(text):
            raise InvalidRequest(
                f"The header {_PRIORITY_HEADER} is {text[:50]!r}; it must be a whole number.",
                parameter=_PRIORITY_HEADER,
            )
        asked = int(text)
        PRIORITY_BOUND.check(_PRIORITY_HEADER, asked)
    admission = admission_of(request)
    return asked if admission is None else admission.key.priority(asked)


def check_rank(request: Request) -> None:
    """
    Raises:
        InvalidRequest: a header selects the data-parallel rank for the request.
    """
    if _RANK_HEADER in request.headers:
        raise InvalidRequest(
            f"The header {_RANK_HEADER} is refused: the router picks the worker. Leave it out.", parameter=_RANK_HEADER
        )


def load_format(request: Request) -> str:
    """Returns the format in which the response should report the load: TEXT, JSON, or empty for no report.

    Raises:
        InvalidRequest: the format is unknown.
    """
    form = request.headers.get(_LOAD_HEADER, "").upper()
    if form not in ("", "TEXT", "JSON"):
        raise InvalidRequest(
            f"The header {_LOAD_HEADER} is {form[:50]!r}; it must be TEXT or JSON.", parameter=_LOAD_HEADER
        )
    return form


def tenant_of(request: Request) -> str:
    """Returns the tenant, see Caller; raises as `caller_of`."""
    state = request.scope["state"]
    tenant: str = state["tenant"] if "tenant" in state else tenant_hash(_header(request, _TENANT_HEADER))
    return tenant


def tenant_hash(secret: str) -> str:
    """Returns the identifier of an API key or tenant name used behind the gateway: 16 hex digits; empty for none."""
    return hashlib.sha256(secret.encode()).hexdigest()[:16] if secret else ""


def _header(request: Request, name: str) -> str:
    value = request.headers.get(name, "")
    if value and not is_request_id(value):
        raise InvalidRequest(f"The header {name} must be 1 to 128 of the characters A-Z a-z 0-9 . _ -", parameter=name)
    return value


def _cache_salt(tenant: str, salt: str) -> str:
    """Combines the tenant's key and the request's own salt by hashing."""
    if not tenant:
        return salt
    return hmac.new(tenant.encode(), salt.encode(), hashlib.sha256).hexdigest()
