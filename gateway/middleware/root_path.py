"""The path under which a proxy serves this server: requests come with it or, where the proxy takes it off, without."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPathMiddleware:
    """Makes both look as ASGI wants it: `root_path` is set, and the paths begin with it.

    Proxies differ, and what asks for `/health` behind the proxy's back knows nothing of its path.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        """
        Args:
            root_path: such as /llm; empty without such a proxy.
        """
        self._app = app
        self._root = f"/{root_path.strip('/')}" if root_path.strip("/") else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, below the path."""
        if self._root and scope["type"] == "http":
            path, raw_path, root = scope["path"], scope["raw_path"], self._root.encode()
            if not path.startswith(f"{self._root}/"):
                path, raw_path = self._root + path, root + raw_path
            scope = {**scope, "root_path": self._root, "path": path, "raw_path": raw_path}
        await self._app(scope, receive, send)


def path_below_root(scope: Scope) -> bytes:
    """The raw path of a request without the proxy's."""
    raw_path: bytes = scope.get("raw_path", b"")
    return raw_path.removeprefix(scope.get("root_path", "").encode())
