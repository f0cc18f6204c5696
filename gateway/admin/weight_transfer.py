"""Weights that a trainer sends to running engines, by the calls of vLLM's trainers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.answer import outcomes_response
from gateway.admin.checker import compared
from gateway.admin.query import Query
from gateway.admin.weights import check_one_model, check_version, get_weight_version
from gateway.endpoints.body import read_json
from gateway.protocol.admin import (
    FinishWeightUpdate,
    InitWeightTransfer,
    NameWeights,
    ReceiveWeights,
    SentWeights,
    StartWeightUpdate,
)
from quire.errors import InvalidRequest
from quire.sleep import Leaving

Body = TypeVar("Body", bound=msgspec.Struct)


async def init_weight_transfer_engine(request: Request) -> Response:
    """Has all ranks of the workers join a trainer's process group; answers once all have.

    Raises:
        InvalidRequest: a field is invalid, or the workers serve several models.
    """
    query, body = Query(request), await read_json(request, InitWeightTransfer)
    check_one_model(request, query)
    outcomes = await query.administration.status()
    if not outcomes.errors:
        workers = sorted(outcomes.workers, key=lambda worker: worker.worker)
        outcomes = await query.administration.join_trainer(body.init_info, workers)
    return outcomes_response(outcomes, message="Weight transfer initialized")


async def start_weight_update(request: Request) -> Response:
    """Begins new weights.

    Raises:
        InvalidRequest: they would not be those of a checkpoint.
    """
    return await _start(request, of_draft=False)


async def start_draft_weight_update(request: Request) -> Response:
    """Begins new weights of the draft model.

    Raises:
        InvalidRequest: see `start_weight_update`.
    """
    return await _start(request, of_draft=True)


async def _start(request: Request, *, of_draft: bool) -> Response:
    query, body = Query(request), await _read_if_any(request, StartWeightUpdate)
    if not body.is_checkpoint_format:
        raise InvalidRequest(
            "is_checkpoint_format must be true: tensors are sent as in the checkpoint, not as the engines keep them.",
            parameter="is_checkpoint_format",
        )
    outcomes = await query.administration.start_weight_update(of_draft=of_draft)
    return outcomes_response(outcomes, message="Weight update started")


async def update_weights(request: Request) -> Response:
    """Receives tensors that the trainer broadcasts.

    Raises:
        InvalidRequest: a field is invalid.
    """
    query, body = Query(request), await read_json(request, ReceiveWeights)
    _check_lengths(body.update_info)
    return outcomes_response(await query.administration.receive_weights(body.update_info), message="Weights updated")


async def finish_weight_update(request: Request) -> Response:
    """Serves the weights that were received.

    Raises:
        InvalidRequest: a field is invalid.
    """
    query, body = Query(request, "mode"), await _read_if_any(request, FinishWeightUpdate)
    check_version("weight_version", body.weight_version)
    version = body.weight_version or f"update-{secrets.token_hex(4)}"
    outcomes = await query.administration.finish_weight_update(version, query.leaving(Leaving.KEEP))
    if body.baseline is None or outcomes.errors:
        return outcomes_response(outcomes, message="Weight update finished")
    return await compared(query, body.baseline, message="Weight update finished")


async def update_weight_version(request: Request) -> Response:
    """Gives the served weights another version.

    Raises:
        InvalidRequest: it is empty or too long.
    """
    query, body = Query(request), await read_json(request, NameWeights)
    check_version("new_version", body.new_version)
    outcomes = await query.administration.name_weights(body.new_version)
    return outcomes_response(outcomes, success=True, new_version=body.new_version)


async def get_world_size(request: Request) -> Response:
    """Returns the number of ranks of all workers, or of one if `include_dp` is false."""
    query = Query(request, "include_dp")
    includes_all = query.boolean("include_dp", True)
    outcomes = await query.administration.status()
    counts = [worker.num_ranks for worker in outcomes.workers]
    return outcomes_response(outcomes, world_size=sum(counts) if includes_all else max(counts))


async def _read_if_any(request: Request, kind: type[Body]) -> Body:
    return await read_json(request, kind) if "content-type" in request.headers else kind()


def _check_lengths(sent: SentWeights) -> None:
    """
    Raises:
        InvalidRequest: the lists do not describe the same number of tensors.
    """
    for name, given in (("dtype_names", sent.dtype_names), ("shapes", sent.shapes)):
        if len(given) != len(sent.names):
            raise InvalidRequest(
                f"{name} has {len(given)} items, but names has {len(sent.names)}: give one for each tensor.",
                parameter=name,
            )


ROUTES: Sequence[Route] = (
    Route("/init_weight_transfer_engine", init_weight_transfer_engine, methods=["POST"]),
    Route("/start_weight_update", start_weight_update, methods=["POST"]),
    Route("/start_draft_weight_update", start_draft_weight_update, methods=["POST"]),
    Route("/update_weights", update_weights, methods=["POST"]),
    Route("/finish_weight_update", finish_weight_update, methods=["POST"]),
    Route("/update_weight_version", update_weight_version, methods=["POST"]),
    Route("/weight_info", get_weight_version),
    Route("/get_world_size", get_world_size),
)
