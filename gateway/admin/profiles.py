"""Profiling of the engines' steps."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.answer import outcomes_response
from gateway.admin.query import Query


async def start_profile(request: Request) -> Response:
    """Makes the ranks record a profile, for as many steps as --profiler-config says."""
    return outcomes_response(await Query(request).administration.profile(wanted=True), status="profiling")


async def stop_profile(request: Request) -> Response:
    """Makes the ranks write the profile to files, which each worker reports."""
    return outcomes_response(await Query(request).administration.profile(wanted=False), status="stopped")


ROUTES: Sequence[Route] = (
    Route("/start_profile", start_profile, methods=["POST"]),
    Route("/stop_profile", stop_profile, methods=["POST"]),
)
