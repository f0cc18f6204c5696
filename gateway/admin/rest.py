"""Pauses engines, or puts them to sleep."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.answer import outcomes_response
from gateway.admin.query import Query
from quire.errors import InvalidRequest
from quire.sleep import PARTS, Leaving, SleepLevel


async def pause(request: Request) -> Response:
    """Stops all requests from progressing until /resume; new requests get 503 meanwhile."""
    query = Query(request, "mode", "clear_cache")
    leaving = query.leaving(Leaving.ABORT)
    clears_cache = query.boolean("clear_cache", True)
    return outcomes_response(await query.administration.pause(leaving, clears_cache=clears_cache), status="paused")


async def resume(request: Request) -> Response:
    """Lets requests progress again."""
    return outcomes_response(await Query(request).administration.resume(), status="resumed")


async def is_paused(request: Request) -> Response:
    """Whether any worker is paused."""
    outcomes = await Query(request).administration.status()
    return outcomes_response(outcomes, is_paused=any(worker.is_paused for worker in outcomes.workers))


async def sleep(request: Request) -> Response:
    """Pauses, and releases memory: at level 1 the KV cache, at level 2 the weights too."""
    query = Query(request, "level", "mode")
    level = SleepLevel(int(query.choice("level", "1", [str(level.value) for level in SleepLevel])))
    leaving = query.leaving(Leaving.ABORT)
    return outcomes_response(await query.administration.sleep(level, leaving), status="sleeping", level=level)


async def wake_up(request: Request) -> Response:
    """Restores the memory named by the tags, or all of it.

    Raises:
        InvalidRequest: a tag is unknown.
    """
    query = Query(request, "tags")
    tags = query.several("tags")
    for tag in tags:
        if tag not in PARTS:
            raise InvalidRequest(f"tags has {tag[:64]!r}; each must be one of {', '.join(PARTS)}.", parameter="tags")
    return outcomes_response(await query.administration.wake_up(tags), status="awake", tags=tags or None)


async def release_kv_cache_memory(request: Request) -> Response:
    """Releases the KV cache of paused workers; /wake_up allocates it again, and resumes."""
    return outcomes_response(await Query(request).administration.release_cache(), status="released")


async def is_sleeping(request: Request) -> Response:
    """Whether any worker is asleep."""
    outcomes = await Query(request).administration.status()
    sleeping = any(worker.sleep_level is not None for worker in outcomes.workers)
    return outcomes_response(outcomes, is_sleeping=sleeping)


ROUTES: Sequence[Route] = (
    Route("/pause", pause, methods=["POST"]),
    Route("/resume", resume, methods=["POST"]),
    Route("/is_paused", is_paused),
    Route("/sleep", sleep, methods=["POST"]),
    Route("/wake_up", wake_up, methods=["POST"]),
    Route("/release_kv_cache_memory", release_kv_cache_memory, methods=["POST"]),
    Route("/is_sleeping", is_sleeping),
)
