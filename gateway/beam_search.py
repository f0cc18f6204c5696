"""Beam search: each step of the search is a small request of its own covering all running beams.

A step asks the engine for the most likely next tokens of each beam. Each beam is one sequence that continues from the
tokens it already has, like a request that moved from another worker. So a step runs on any worker, moves to another if
its worker is lost, and finds the prefix it shares with earlier steps in the prefix cache.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from gateway.answers.deltas import TokenScore
from gateway.requests.beams import Beam, BeamSearch, Likeliest
from gateway.requests.generation_request import GenerationRequest
from gateway.requests.state import ChoiceState, GenerationUsage, RequestState, StreamState
from gateway.services.convert import from_beam
from gateway.services.router_streams import RouterStreams
from quire.errors import Cancelled, DeadlineExceeded, Internal, QuireError

if TYPE_CHECKING:
    from quire.v1.common_pb2 import GenerationDelta

logger = logging.getLogger(__name__)

# Request ids are cut to this length before a step's id appends the prompt number.
_MAX_REQUEST_ID = 100


class BeamSearches:
    """The beam searches in progress."""

    def __init__(self, router_streams: RouterStreams, deliver: Callable[[StreamState, GenerationDelta], None]) -> None:
        """
        Args:
            deliver: passes a stream's next complete output on to its client.
        """
        self._router_streams = router_streams
        self._on_output = deliver
        self._tasks: dict[RequestState, asyncio.Task[None]] = {}

    def start(self, state: RequestState) -> None:
        """Starts the search of a request; results and errors arrive through its state."""
        self._tasks[state] = asyncio.create_task(self._run(state))

    def stop(self, state: RequestState) -> None:
        """Cancels the search of a request that has ended; does nothing if the request has none."""
        if task := self._tasks.pop(state, None):
            task.cancel()

    async def _run(self, state: RequestState) -> None:
        deadline = time.monotonic() + state.request.timeout_seconds
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(len(state.request.prompts)):
                    group.create_task(self._search(state, number, deadline))
        except* QuireError as errors:
            error = errors.exceptions[0]
            assert isinstance(error, QuireError)
            state.fail(error)
        except* Exception as errors:
            logger.error("request %s: beam search failed", state.request.request_id, exc_info=errors)
            state.fail(Internal("The beam search failed; the gateway's log says why."))

    async def _search(self, state: RequestState, number: int, deadline: float) -> None:
        """Runs the search for one prompt, and delivers the outputs."""
        request = state.request
        assert request.beams is not None
        room = request.max_model_len - request.prompts[number].num_tokens
        wanted = request.sampling.max_tokens
        search = BeamSearch(request.beams, room if wanted is None else min(room, wanted))
        usage: GenerationUsage | None = None
        while not search.done:
            stream = _step(request, number, search.running, deadline, self._abandon)
            stream.owner.trace = state.trace
            self._router_streams.start(stream)
            search.advance(await _read(stream, deadline))
            usage = _with_step(usage, stream.usage)
        self._deliver(StreamState(state, number, None, deadline, usage=usage, over=True), search)

    def _abandon(self, step: RequestState) -> None:
        for stream in step.streams:
            self._router_streams.abort(stream)

    def _deliver(self, stream: StreamState, search: BeamSearch) -> None:
        """Delivers the best outputs as choices. If there are fewer than `n`, the best one fills the rest.

        Raises:
            Internal: there are no outputs.
        """
        request = stream.owner.request
        if not search.outputs:
            raise Internal("The beam search found no output: no token was possible. Relax the constraints.")
        stream.owner.streams.append(stream)
        outputs = search.outputs + search.outputs[:1] * request.n
        for beam in outputs[: request.n]:
            self._on_output(stream, from_beam(beam, search.ends(beam), request.sampling))


def _step(
    request: GenerationRequest,
    number: int,
    running: Sequence[Beam],
    deadline: float,
    release: Callable[[RequestState], None],
) -> StreamState:
    """Builds the stream of one search step for one of the request's prompts."""
    assert request.beams is not None
    length = len(running[0].token_ids) + 1
    sampling = msgspec.structs.replace(
        request.sampling,
        n=len(running),
        max_tokens=length,
        min_tokens=min(request.sampling.min_tokens, length),
        # The sampled token is ignored: only the candidates matter, after all of the request's logits processing.
        temperature=0.0,
        processed_logprobs=True,
        logprobs=max(request.beams.num_candidates, request.sampling.logprobs or 0),
    )
    step = replace(
        request, request_id=f"{request.request_id[:_MAX_REQUEST_ID]}-{number}", prompts=(request.prompts[number],),
        sampling=sampling, wants_text=False, parsers=(), beams=None,
    )  # fmt: skip
    state = RequestState(step, release)
    stream = StreamState(state, 0, None, deadline)
    state.streams.append(stream)
    stream.choices += [ChoiceState(stream, index, delivered=array("I", beam.token_ids))
                       for index, beam in enumerate(running)]  # fmt: skip
    return stream


def _with_step(cost: GenerationUsage | None, step: GenerationUsage | None) -> GenerationUsage | None:
    """Adds a step to the usage of a search. Steps after the first count as decoding: each finds the next token."""
    if cost is None or step is None:
        return cost or step
    return replace(
        cost,
        router_queue_seconds=cost.router_queue_seconds + step.router_queue_seconds,
        queue_seconds=cost.queue_seconds + step.queue_seconds,
        decode_seconds=cost.decode_seconds + step.prefill_seconds + step.decode_seconds,
    )


async def _read(stream: StreamState, deadline: float) -> list[Likeliest | None]:
    """Returns the most likely next tokens of each beam, once the step is done; None for a beam that cannot be extended.

    Raises:
        QuireError: the step failed.
    """
    step = stream.owner
    scores: dict[int, TokenScore] = {}
    ended: set[int] = set()
    try:
        while (batch := await step.next_batch(max(0.0, deadline - time.monotonic()))) != []:
            if batch is None:
                raise DeadlineExceeded("The request did not finish within its time limit.")
            for update in batch:
                ended.add(update.index)
                if update.scores:
                    scores[update.index] = update.scores[-1]
        if step.error:
            raise step.error
        if len(ended) < len(stream.choices):
            raise Cancelled("The beam search was cut off.")
    finally:
        step.cancel()
    return [_likeliest(scores.get(index)) for index in range(len(stream.choices))]


def _likeliest(score: TokenScore | None) -> Likeliest | None:
    return None if score is None else Likeliest(score.token_ids[1:], score.logprobs[1:])  # the first is the sampled one
