"""`/`: a page for chatting with the model and watching the fleet; all of its assets are served from here."""

from __future__ import annotations

from importlib import resources

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.context import context_of
from gateway.errors import json_response
from gateway.page_assets import PAGE_ASSETS

_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; connect-src 'self'; script-src 'self'; style-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-cache",
}  # fmt: skip


async def page(request: Request) -> Response:
    """The page itself, which needs no key."""
    return _file("page.html")


async def asset(request: Request) -> Response:
    """An asset of the page."""
    name = request.path_params["asset"]
    if name not in PAGE_ASSETS:
        raise HTTPException(404)
    return _file(name)


async def fleet(request: Request) -> Response:
    """The workers, as last reported by the router."""
    return json_response({"workers": context_of(request).fleet.views})


def _file(name: str) -> Response:
    content = (resources.files("gateway") / "static" / name).read_bytes()
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)
