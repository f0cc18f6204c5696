"""Requests of pooling models. Large ones are split into parts, which routers place on several workers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gateway.answers.pooled import Pooled, PooledPart
from gateway.requests.choice_room import ChoiceRoom
from gateway.requests.pooling_request import PoolingRequest, TokenizedInput
from gateway.requests.statistics import RequestStatistics
from gateway.services.convert import from_pooling, to_pooled
from gateway.services.router_streams import RouterStreams
from gateway.services.together import Together
from quire.errors import DeadlineExceeded, InvalidRequest, Unavailable
from quire.images import MAX_IMAGES_BYTES

# Limits of one part: large enough that the call overhead is small, small enough to spread a request over workers.
_MOST_TOKENS = 4 * 1024
_MOST_ANSWER_BYTES = 8 * 2**20
_MOST_CONTENT_BYTES = MAX_IMAGES_BYTES  # of images, which is also the limit of an input's
_PARTS_AT_ONCE = 16
# Requests with fewer tokens are batched with similar ones.
_FEW_TOKENS = 512
# Output size limits of one request and of all live requests: per-token vectors are as many as the tokens.
_MOST_REQUEST_BYTES = 2**28
_MOST_LIVE_BYTES = 2**30
_GRACE_SECONDS = 2.0


class PoolingCalls:
    """Runs pooling requests on the routers. Used from the event loop only."""

    def __init__(self, routers: RouterStreams, room: ChoiceRoom, statistics: RequestStatistics) -> None:
        """
        Args:
            room: the limit on live sequences that all requests of the gateway share.
        """
        self._routers = routers
        self._room = room
        self._statistics = statistics
        self._bytes_room = ChoiceRoom(_MOST_LIVE_BYTES, "bytes of vectors and images")
        self._small: Together[tuple[object, ...], PoolingRequest, list[PooledPart]]
        self._small = Together(self._pool_together, _FEW_TOKENS)

    async def pool(self, request: PoolingRequest) -> list[Pooled]:
        """Returns the output of each input. If cancelled, it cancels all parts in flight.

        Raises:
            InvalidRequest: the output would be too large.
            Overloaded: too much is running already, or the key has not enough tokens left.
            QuireError: no worker completed it.
        """
        with self._entered(request), self._statistics.pooling(request) as timed:
            if (num_tokens := request.num_tokens) < _FEW_TOKENS:
                found = await self._small.add(_likeness(request), request, num_tokens)
            else:
                found = await self._parts(request)
            timed(found)
        return [output for part in found for output in part.outputs]

    @contextlib.contextmanager
    def _entered(self, request: PoolingRequest) -> Iterator[None]:
        """Reserves room for a request while the context is open, all of it or none."""
        tenant, count = request.tenant, len(request.inputs)
        size = sum(map(request.answer_bytes, request.inputs))
        if size > _MOST_REQUEST_BYTES:
            raise InvalidRequest(
                f"The results for the inputs would take {size} bytes as float32; at most {_MOST_REQUEST_BYTES} are "
                "allowed per request: send fewer inputs, or shorter ones.",
                parameter="input",
            )
        with contextlib.ExitStack() as taken:
            self._room.enter(tenant, count)
            taken.callback(self._room.leave, tenant, count)
            size += sum(each.content_bytes for each in request.inputs)
            self._bytes_room.enter(tenant, size)
            taken.callback(self._bytes_room.leave, tenant, size)
            if request.admission:
                taken.enter_context(request.admission.reserved(request.num_tokens))
            yield

    async def _pool_together(self, _: object, requests: Sequence[PoolingRequest]) -> list[list[PooledPart]]:
        """Runs compatible requests as one, and splits the outputs by request."""
        inputs = [each for request in requests for each in request.inputs]
        parts = await self._parts(replace(requests[0], inputs=inputs))
        outputs = iter([output for part in parts for output in part.outputs])
        queued, computed = (max(part.queue_seconds for part in parts), max(part.compute_seconds for part in parts))
        return [
            [PooledPart(list(itertools.islice(outputs, len(request.inputs))), queued, computed)] for request in requests
        ]

    async def _parts(self, request: PoolingRequest) -> list[PooledPart]:
        deadline = time.monotonic() + request.timeout_seconds
        parts = list(_split(request))
        if len(parts) == 1:
            return [await self._part(request, parts[0], request.request_id, deadline)]
        slots = asyncio.Semaphore(_PARTS_AT_ONCE)

        async def run(number: int, inputs: Sequence[TokenizedInput]) -> PooledPart:
            async with slots:
                return await self._part(request, inputs, f"{request.request_id[:120]}-{number}", deadline)

        tasks = [asyncio.ensure_future(run(number, inputs)) for number, inputs in enumerate(parts)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _part(
        self, request: PoolingRequest, inputs: Sequence[TokenizedInput], request_id: str, deadline: float
    ) -> PooledPart:
        """Sends one part to the least busy router, and to another if that one is lost or refuses."""
        refused_by: list[str] = []
        failure: Unavailable | None = None
        while True:
            if (seconds := deadline - time.monotonic()) <= 0:
                raise DeadlineExceeded("The request did not finish within its time limit.")
            try:
                router = await self._routers.wait_up(0.0 if failure else seconds, refused_by)
            except Unavailable as error:
                raise failure or error from None
            message = from_pooling(request, inputs, request_id, max(1, int(seconds * 1000)))
            try:
                return to_pooled(await router.pool(message, seconds + _GRACE_SECONDS))
            except Unavailable as error:
                failure = error
                refused_by.append(router.address)


def _likeness(request: PoolingRequest) -> tuple[object, ...]:
    """Batching key: equal for requests with the same model, task, parameters, priority, tenant and timeout."""
    return (
        request.requested_model, request.task, request.dimensions, request.normalize, request.use_activation,
        request.priority, request.tenant, request.timeout_seconds,
    )  # fmt: skip


def _split(request: PoolingRequest) -> Iterator[Sequence[TokenizedInput]]:
    """Yields the inputs in order, in groups that fit one call."""
    info = request.model.pooling
    assert info is not None
    start, limits = 0, (info.max_inputs, _MOST_TOKENS, _MOST_ANSWER_BYTES, _MOST_CONTENT_BYTES)
    used = (0,) * len(limits)
    for index, each in enumerate(request.inputs):
        own = (1, len(each.token_ids), request.answer_bytes(each), each.content_bytes)
        used = tuple(map(sum, zip(used, own, strict=True)))
        if index > start and any(count > limit for count, limit in zip(used, limits, strict=True)):
            yield request.inputs[start:index]
            start, used = index, own
    yield request.inputs[start:]
