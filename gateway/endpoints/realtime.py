"""`GET /v1/realtime`: a WebSocket on which audio arrives, and its transcript is sent as it is written."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from gateway.context import context_of
from gateway.errors import error_response, plain_error, stopping
from gateway.requests.named_key import NamedKey

_SUBPROTOCOL = "realtime"  # which OpenAI's clients for browsers offer


async def realtime(socket: WebSocket) -> None:
    """Transcribes audio while it arrives."""
    from gateway.endpoints.realtime_session import RealtimeSession  # late: it needs numpy, a third of a gateway's start

    if (refusal := _refusal(socket)) is not None:
        await socket.send_denial_response(refusal)
        return
    session, context = RealtimeSession(socket), context_of(socket)
    key: NamedKey | None = socket.scope["state"].get("named_key")
    with context.realtime.held(session.stop), context.api_keys.held(key, session.revoke):
        await socket.accept(_SUBPROTOCOL if _SUBPROTOCOL in socket.scope["subprotocols"] else None)
        await session.run()


async def upgrade_needed(request: Request) -> Response:
    """Answers requests that are no WebSocket's."""
    return plain_error(
        426, "/v1/realtime is a WebSocket: connect to it with a WebSocket client (ws:// or wss://).", request.scope,
        {"upgrade": "websocket", "connection": "upgrade"},
    )  # fmt: skip


def _refusal(socket: WebSocket) -> Response | None:
    context, origin = context_of(socket), socket.headers.get("origin")
    if context.realtime.is_ending:
        return error_response(stopping(), socket.scope)
    if origin is None or urlsplit(origin).netloc == socket.headers.get("host"):
        return None
    # Browsers let any page connect to any server, and leave it to the server to refuse.
    if {origin, "*"}.isdisjoint(context.options.allowed_origins):
        return plain_error(
            403, f"The page's origin {origin[:100]!r} may not connect: the server's operator can allow it with "
            "--allowed-origins.", socket.scope,
        )  # fmt: skip
    return None
