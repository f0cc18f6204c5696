"""The path of generated tokens: router → tokenizer service → client, one frame at a time for all streams together.

The gateway has one session with each router and one with each replica of the tokenizer service. A router frame with the
new tokens of all streams becomes one frame to the tokenizer service; the reply, with the text of all streams, is
distributed to the clients. The only task per stream is the one that writes to its client.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import msgspec

from gateway.answers.deltas import ChoiceUpdate, Finish, FinishReason
from gateway.answers.weight_versions import WeightVersions
from gateway.beam_search import BeamSearches
from gateway.requests.choice_room import ChoiceRoom
from gateway.requests.generation_request import GenerationRequest
from gateway.requests.request_log import RequestLog
from gateway.requests.retelling import GeneratedPart
from gateway.requests.state import AudioAppend, ChoiceState, RequestState, StreamState
from gateway.requests.statistics import RequestStatistics
from gateway.requests.traces import RequestTraces
from gateway.services.convert import from_generated, to_update
from gateway.services.pooling import PoolingCalls
from gateway.services.router_streams import RouterStreams
from gateway.services.texts import Texts
from quire.errors import Cancelled
from quire.options.server import RpcSecurityOptions
from quire.prompt_embeds import MAX_LIVE_CONTENT_BYTES
from quire.rpc.settings import CALL_SECONDS
from quire.seeds import SeedSource

if TYPE_CHECKING:
    from quire.v1.common_pb2 import GenerationDelta


class Pipeline:
    """Owns all live requests and the sessions they need. Used from the event loop only."""

    def __init__(
        self,
        router_addresses: Sequence[str],
        tokenizer_addresses: Sequence[str],
        security: RpcSecurityOptions,
        statistics: RequestStatistics,
        seeds: SeedSource,
        log: RequestLog,
        traces: RequestTraces,
    ) -> None:
        self._statistics = statistics
        self._seeds = seeds
        self._log = log
        self._traces = traces
        self.texts = Texts(tokenizer_addresses, security, statistics, self._on_update)
        self.router_streams = RouterStreams(router_addresses, security, statistics, self._on_tokens)
        self._beam_searches = BeamSearches(self.router_streams, self._deliver)
        self._room = ChoiceRoom()
        self._live: dict[RequestState, None] = {}
        self.pooling = PoolingCalls(self.router_streams, self._room, statistics)
        self._content_room = ChoiceRoom(MAX_LIVE_CONTENT_BYTES, "bytes of images, videos, audio and embeddings")

    @property
    def num_live(self) -> int:
        """Number of sequences that are being detokenized."""
        return self.texts.num_open

    async def run(self) -> None:
        """Keeps the sessions up until cancelled."""
        await asyncio.gather(self.router_streams.run(), self.texts.run())

    async def start(self, request: GenerationRequest) -> RequestState:
        """Starts a request. If no router can be reached, the request fails later, through its state.

        Raises:
            Unavailable: the tokenizer service cannot be reached.
            InvalidRequest: its key never allows that many tokens.
            Overloaded: the tokenizer service does not keep up with reading, too many choices are running already, or
                the key has not enough tokens left.
        """
        if request.wants_text:
            await self.texts.replicas.wait_up(min(CALL_SECONDS, request.timeout_seconds))
        state = self._enter(request)
        self._statistics.started(state)
        self._log.started(state)
        self._traces.started(state)
        if request.beams is not None:
            self._beam_searches.start(state)
            return state
        try:
            for number in range(len(request.prompts)):
                if state.closed:
                    break
                stream = self._open_stream(state, number)
                self.router_streams.start(stream)
                await asyncio.sleep(0)  # yields to other tasks, and spreads the prompts over frames
        except BaseException:
            state.cancel()
            raise
        return state

    def hear(self, state: RequestState, append: AudioAppend) -> None:
        """Goes on with the recording of a request, which has one prompt; ignored once it has ended."""
        if not state.closed:
            self.router_streams.hear(state.streams[0], append)

    def abort(self, request_ids: AbstractSet[str], tenant: str | None = None) -> int:
        """Aborts the live requests with these ids, and their parts, keeping their output so far; returns how many there
        were.

        Args:
            tenant: only requests of this tenant; None means of any tenant.
        """
        found = [
            each for each in self._live if not request_ids.isdisjoint((each.request.request_id, each.request.part_of))
        ]
        found = [each for each in found if tenant is None or each.request.tenant == tenant]
        for state in found:
            for choice in [choice for stream in state.streams for choice in stream.choices if not choice.ended]:
                self.texts.close(choice)  # tells the tokenizer service that the choice has ended
                self._on_update(choice, ChoiceUpdate(choice.index, (Finish(FinishReason.ABORT),), ()))
            if state.open_choices:  # choices whose stream was never opened
                state.fail(Cancelled("The request was aborted before its choices had begun."))
        return len(found)

    async def retell(self, request: GenerationRequest, outputs: Sequence[Sequence[GeneratedPart]]) -> RequestState:
        """Turns choices that were generated earlier into text: a request whose tokens are given instead of sampled.

        Args:
            outputs: for each choice, its parts; each part becomes one update.

        Raises: as `start`.
        """
        await self.texts.replicas.wait_up(min(CALL_SECONDS, request.timeout_seconds))
        state = self._enter(request)
        deadline = time.monotonic() + request.timeout_seconds
        try:
            for number in range(len(request.prompts)):
                stream = StreamState(state, number, None, deadline, over=True)
                state.streams.append(stream)
                for parts in outputs[number * request.n : (number + 1) * request.n]:
                    self._deliver(stream, *map(from_generated, parts))
        except BaseException:
            state.cancel()
            raise
        return state

    def _deliver(self, stream: StreamState, *parts: GenerationDelta) -> None:
        """Adds a complete choice, whose parts are all known, as the next one of the stream."""
        request = stream.owner.request
        choice = ChoiceState(stream, stream.number * request.n + len(stream.choices), finished=True)
        stream.choices.append(choice)
        if request.wants_text:
            self.texts.open(choice)
        for part in parts:
            choice.delivered.extend(part.token_ids)
            self._on_tokens(choice, part)

    def _enter(self, request: GenerationRequest) -> RequestState:
        """Admits a request, reserving room for all of its sequences or none, and its tokens if they are limited.

        Raises:
            InvalidRequest: its key never allows that many tokens.
            Overloaded: there is not enough room, or the key has not enough tokens left.
        """
        state = RequestState(request, self._release)
        with contextlib.ExitStack() as taken:
            for room, amount in self._rooms_of(request):
                room.enter(request.tenant, amount)
                taken.callback(room.leave, request.tenant, amount)
            if request.admission:
                state.reservation = request.admission.reserve(
                    request.prompt_tokens, request.output_tokens, may_shrink=request.sampling.max_tokens is None
                )
            taken.pop_all()
        self._live[state] = None
        return state

    def _rooms_of(self, request: GenerationRequest) -> list[tuple[ChoiceRoom, int]]:
        """The rooms that a request needs, and how much of each."""
        amounts = ((self._room, request.sequences), (self._content_room, request.content_bytes))
        return [(room, amount) for room, amount in amounts if amount]

    def _open_stream(self, state: RequestState, number: int) -> StreamState:
        """Opens the stream of one of the request's prompts, and its choices for detokenization."""
        request = state.request
        stream = StreamState(state, number, self._seed(request), time.monotonic() + request.timeout_seconds)
        state.streams.append(stream)
        for index in range(request.n):
            choice = ChoiceState(stream, number * request.n + index)
            choice.versions = WeightVersions() if request.with_weight_versions else None
            stream.choices.append(choice)
            if request.wants_text:
                self.texts.open(choice)
        return stream

    def _seed(self, request: GenerationRequest) -> int | None:
        """Draws a seed if the request has none, so that any router and engine can continue with the same noise."""
        sampling = request.sampling
        return self._seeds.draw() if sampling.seed is None and not sampling.is_greedy else sampling.seed

    def _release(self, state: RequestState) -> None:
        """Forgets a request that has ended, and stops the work that other services still do for it."""
        self._live.pop(state, None)
        self._beam_searches.stop(state)
        for stream in state.streams:
            self.router_streams.abort(stream)
            for choice in stream.choices:
                self.texts.close(choice)
        for room, amount in self._rooms_of(state.request):
            room.leave(state.request.tenant, amount)
        if state.reservation:
            generated = state.num_generated
            # A request that failed before its first token has used nothing.
            state.reservation.settle(0 if state.error and not generated else state.prompt_tokens, generated)
        self._statistics.ended(state)
        self._log.ended(state)
        self._traces.ended(state)

    def _on_tokens(self, choice: ChoiceState, delta: GenerationDelta) -> None:
        if choice.stream.owner.request.wants_text:
            self.texts.add(choice, delta)
        else:
            self._on_update(choice, to_update(choice.index, delta))

    def _on_update(self, choice: ChoiceState, update: ChoiceUpdate) -> None:
        state = choice.stream.owner
        choice.num_tokens += len(update.token_ids)
        if choice.versions is not None and update.finish:
            update = msgspec.structs.replace(update, weight_versions=choice.versions.spans(choice.num_tokens))
        now = time.monotonic()
        self._statistics.progressed(state, update, now)
        self._log.progressed(state, update)
        self._traces.progressed(state, update, now)
        state.push(update)
        if update.finish:
            self._end_choice(choice)

    def _end_choice(self, choice: ChoiceState) -> None:
        choice.ended = True
        self.texts.close(choice)
        if not choice.finished:
            self.router_streams.stop(choice)
        state = choice.stream.owner
        state.open_choices -= 1
        state.settle()
