"""The routes of the admin port. To add a subject, add a module with `ROUTES` and a line here."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from starlette.middleware import Middleware
from starlette.routing import Route

from gateway.admin import cache, checker, elastic, profiles, requests, rest, weight_transfer, weights, workers
from gateway.admin.guard import GuardMiddleware

ADMIN_ROUTES: Sequence[Route] = (
    *cache.ROUTES,
    *checker.ROUTES,
    *elastic.ROUTES,
    *profiles.ROUTES,
    *requests.ROUTES,
    *rest.ROUTES,
    *weight_transfer.ROUTES,
    *weights.ROUTES,
    *workers.ROUTES,
)


def admin_routes(*, has_keys: bool, allowed_hosts: Collection[str]) -> list[Route]:
    """Returns all admin routes, each guarded.

    Args:
        has_keys, allowed_hosts: see GuardMiddleware.
    """
    guard = [Middleware(GuardMiddleware, has_keys=has_keys, allowed_hosts=allowed_hosts)]
    return [
        Route(route.path, route.endpoint, methods=sorted(route.methods or ()), middleware=guard)
        for route in ADMIN_ROUTES
    ]
