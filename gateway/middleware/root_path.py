"""The path prefix under which a proxy serves this server; the proxy may or may not strip it from requests."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPathMiddleware:
    """Normalizes both cases to what ASGI expects: `root_path` is set, and paths begin with it.

    Proxies differ, and clients that bypass the proxy, such as health checks, do not use its prefix.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        """
        Args:
            root_path: such as /llm; empty without such a proxy.
        """
        self._app = app
        self._root = f"/{root_path.strip('/')}" if root_path.strip("/") else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, with the prefix in its paths."""
        if self._root and scope["type"] != "lifespan":
            path, raw_path, root = scope["path"], scope["raw_path"], self._root.encode()
            if path == self._root:  # the page, without the slash that belongs to it
                path, raw_path = path + "/", raw_path + b"/"
            elif not path.startswith(f"{self._root}/"):
                path, raw_path = self._root + path, root + raw_path
            scope = {**scope, "root_path": self._root, "path": path, "raw_path": raw_path}
        await self._app(scope, receive, send)


def path_below_root(scope: Scope) -> bytes:
    """Returns the raw path of a request without the proxy's prefix."""
    raw_path: bytes = scope.get("raw_path", b"")
    return raw_path.removeprefix(scope.get("root_path", "").encode())
