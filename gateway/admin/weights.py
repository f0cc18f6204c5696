"""Replaces the weights of running engines by those of a folder that the engines see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.answer import outcomes_response
from gateway.admin.query import Query
from gateway.context import context_of
from gateway.endpoints.body import read_json
from gateway.errors import HttpError
from gateway.protocol.admin import CollectiveRpc, UpdateWeights
from gateway.services.administration import Outcomes
from quire.errors import InvalidRequest
from quire.sleep import Leaving

_MOST_VERSION = 256
_RELOAD, _PATH = "reload_weights", "weights_path"


async def update_weights(request: Request) -> Response:
    """Loads a checkpoint's weights into the engines, which then go on.

    Raises:
        InvalidRequest: a field is invalid, asks for what is not supported, or the workers serve several models.
    """
    query, body = Query(request, "mode"), await read_json(request, UpdateWeights)
    _check(body)
    check_one_model(request, query)
    leaving = query.leaving(Leaving.ABORT if body.abort_all_requests else Leaving.WAIT)
    outcomes = await query.administration.update_weights(body.model_path, body.weight_version or "", leaving)
    return outcomes_response(outcomes, success=True, message=f"The weights of {body.model_path} are served.")


async def get_weight_version(request: Request) -> Response:
    """Returns the version of the weights that all workers serve, or null if they serve different ones."""
    outcomes = await Query(request).administration.status()
    return outcomes_response(outcomes, weight_version=_common_version(outcomes))


async def collective_rpc(request: Request) -> Response:
    """Reloads weights, as the call of this worker method does in vLLM; no other method can be called.

    Raises:
        HttpError: it is another method.
        InvalidRequest: the arguments are not those of the method, or the workers serve several models.
    """
    query, body = Query(request), await read_json(request, CollectiveRpc)
    if body.method != _RELOAD:
        raise HttpError(
            501,
            f"Only {_RELOAD} can be called: whoever reaches this route could run anything if worker methods were "
            "called by name. Use the gRPC services in protos/quire/v1 instead.",
        )
    path = body.kwargs.get(_PATH) or ""
    if body.args or body.kwargs.keys() - {_PATH} or not isinstance(path, str) or (path and not _is_absolute(path)):
        raise InvalidRequest(
            f"{_RELOAD} takes {_PATH} in kwargs, the absolute path of a folder that the engines see, and nothing else.",
            parameter="kwargs",
        )
    check_one_model(request, query)
    outcomes = await query.administration.update_weights(path, "", Leaving.KEEP)
    return outcomes_response(outcomes, results=[None] * len(outcomes.workers))


def _check(body: UpdateWeights) -> None:
    """
    Raises:
        InvalidRequest: a field is invalid or asks for what is not supported.
    """
    if not _is_absolute(body.model_path):
        raise InvalidRequest(
            f"model_path is {body.model_path[:_MOST_VERSION]!r}; it must be the absolute path of a folder that the "
            "engines see.", parameter="model_path",
        )  # fmt: skip
    check_version("weight_version", body.weight_version)
    refused = {
        "load_format": (
            body.load_format not in (None, "auto"), "the engines read it as --load-format says: leave it out"
        ),
        "flush_cache": (not body.flush_cache, "nothing computed with the old weights is used: leave it out"),
        "keep_pause": (body.keep_pause, "an engine that is paused stays so: use /pause first, and /resume later"),
    }  # fmt: skip
    for name, (is_wrong, advice) in refused.items():
        if is_wrong:
            raise InvalidRequest(f"{name} is not supported; {advice}.", parameter=name)


def check_version(field: str, version: str | None) -> None:
    """
    Raises:
        InvalidRequest: a version is given, but is empty or too long.
    """
    if version is not None and not 0 < len(version) <= _MOST_VERSION:
        raise InvalidRequest(f"{field} must have from 1 to {_MOST_VERSION} characters.", parameter=field)


def check_one_model(request: Request, query: Query) -> None:
    """
    Raises:
        InvalidRequest: the workers serve different models, and none is named.
    """
    models = {tuple(view.models) for view in context_of(request).fleet.views if view.models}
    if len(models) > 1 and not query.workers:
        raise InvalidRequest(
            f"{len(models)} different models are served: name the workers of one with ?worker=host:port.",
            parameter="worker",
        )


def _is_absolute(path: str) -> bool:
    return PurePosixPath(path).is_absolute() and "\0" not in path


def _common_version(outcomes: Outcomes) -> str | None:
    versions = {worker.weight_version for worker in outcomes.workers if not worker.error}
    return versions.pop() if len(versions) == 1 else None


ROUTES: Sequence[Route] = (
    Route("/update_weights_from_disk", update_weights, methods=["POST"]),
    Route("/get_weight_version", get_weight_version),
    Route("/collective_rpc", collective_rpc, methods=["POST"]),
)
