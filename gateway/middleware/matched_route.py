"""Which route a request has reached, for measurements that group requests."""

from __future__ import annotations

from starlette.routing import Route
from starlette.types import Scope

from gateway.middleware.root_path import path_below_root

# Paths that orchestrators and Prometheus poll every few seconds.
POLLED_PATHS = ("/health", "/ping", "/livez", "/readyz", "/metrics", "/load")


def is_polled(scope: Scope) -> bool:
    """Whether the path is one that is not worth measuring."""
    return str(scope["path"]).endswith(POLLED_PATHS)


def route_of(scope: Scope) -> str:
    """Returns the route's path with parameter names in place of values; empty if no route was reached."""
    endpoint, path = scope.get("endpoint"), path_below_root(scope).decode("latin-1")
    routes = scope["router"].routes if endpoint is not None else ()
    found = (route for route in routes if isinstance(route, Route) and route.endpoint is endpoint)
    return next((route.path for route in found if route.path_regex.match(path)), "")
