"""The path of tokens: router → tokenizer service → client, one frame at a time for all streams together.

The gateway has one session with each router and one with each replica of the tokenizer service. A router frame with
the new tokens of all streams becomes one frame for the tokenizer service; its answer, with the text of all streams, is
sorted to the clients. No task runs per token and stream but the one that writes to the client.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from gateway.answers.deltas import ChoiceUpdate, Content, Delta, Finish, FinishReason, TokenScore
from gateway.requests.choice_room import ChoiceRoom
from gateway.requests.generation_request import GenerationRequest
from gateway.requests.state import ChoiceState, RequestState, StreamState
from gateway.requests.statistics import RequestStatistics
from gateway.services.router_streams import RouterStreams, new_generation
from gateway.services.texts import Texts
from quire.options.server import RpcSecurityOptions
from quire.rpc.settings import CALL_SECONDS
from quire.seeds import SeedSource
from quire.v1 import common_pb2, tokenizer_pb2

_FINISH = {
    common_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    common_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    common_pb2.FINISH_REASON_ABORT: FinishReason.ABORT,
}
_NO_TEXT = tokenizer_pb2.TextDelta()


class Pipeline:
    """Owner of all live requests and of the sessions that they need. Used from the event loop only."""

    def __init__(
        self,
        router_addresses: Sequence[str],
        tokenizer_addresses: Sequence[str],
        security: RpcSecurityOptions,
        statistics: RequestStatistics,
        seeds: SeedSource,
    ) -> None:
        self._statistics = statistics
        self._seeds = seeds
        self.texts = Texts(tokenizer_addresses, security, statistics, self._on_text)
        self.router_streams = RouterStreams(router_addresses, security, statistics, self._on_tokens)
        self._room = ChoiceRoom()

    @property
    def num_live(self) -> int:
        """Sequences whose text is under way."""
        return self.texts.num_open

    async def run(self) -> None:
        """Keeps the sessions up until cancelled."""
        await asyncio.gather(self.router_streams.run(), self.texts.run())

    async def start(self, request: GenerationRequest) -> RequestState:
        """Starts a request; where no router can be reached, it fails later, through its state.

        Raises:
            Unavailable: the tokenizer service cannot be reached.
            Overloaded: it does not read, or too many choices run already.
        """
        if request.wants_text:
            await self.texts.replicas.wait_up(min(CALL_SECONDS, request.timeout_seconds))
        self._room.enter(request.tenant, request.choices)
        state = RequestState(request, self._release)
        self._statistics.started(state)
        try:
            for number in range(len(request.prompts)):
                if state.closed:
                    break
                stream = self._open_stream(state, number)
                self.router_streams.start(stream)
                await asyncio.sleep(0)  # others have their turn, and no service gets all in one frame
        except BaseException:
            state.cancel()
            raise
        return state

    def _open_stream(self, state: RequestState, number: int) -> StreamState:
        """The stream of one of the request's prompts, whose text can come from now on."""
        request = state.request
        generation = new_generation(request, number, self._seeds)
        stream = StreamState(state, generation, time.monotonic() + request.timeout_seconds)
        state.streams.append(stream)
        for index in range(request.n):
            choice = ChoiceState(stream, number * request.n + index)
            stream.choices.append(choice)
            if request.wants_text:
                self.texts.open(choice)
        return stream

    def _release(self, state: RequestState) -> None:
        """Forgets a request that has ended, and stops what other services still do for it."""
        for stream in state.streams:
            self.router_streams.abort(stream)
            for choice in stream.choices:
                self.texts.close(choice)
        self._room.leave(state.request.tenant, state.request.choices)
        self._statistics.ended(state)

    def _on_tokens(self, choice: ChoiceState, delta: common_pb2.GenerationDelta) -> None:
        if choice.stream.owner.request.wants_text:
            self.texts.add(choice, delta)
        else:
            self._on_text(choice, delta, _NO_TEXT)

    def _on_text(self, choice: ChoiceState, delta: common_pb2.GenerationDelta, text: tokenizer_pb2.TextDelta) -> None:
        update = _update(choice, delta, text)
        state = choice.stream.owner
        choice.num_tokens += len(update.token_ids)
        self._statistics.progressed(state, update, time.monotonic())
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


def _update(choice: ChoiceState, delta: common_pb2.GenerationDelta, text: tokenizer_pb2.TextDelta) -> ChoiceUpdate:
    deltas: tuple[Delta, ...] = (Content(text.text),) if text.text else ()
    if not (delta.finish_reason or delta.logprobs or delta.prompt_logprobs or text.HasField("stop_string")):
        return ChoiceUpdate(choice.index, deltas, tuple(delta.token_ids))
    token_ids, scores = tuple(delta.token_ids), _scores(delta, text)
    if text.HasField("stop_string"):
        deltas += (Finish(FinishReason.STOP, text.stop_string),)
        token_ids, scores = token_ids[: text.tokens_used], scores[: text.tokens_used]
    elif reason := _FINISH.get(delta.finish_reason):
        deltas += (Finish(reason, delta.stop_token_id if delta.HasField("stop_token_id") else None),)
    return ChoiceUpdate(choice.index, deltas, token_ids, scores, tuple(delta.prompt_logprobs))


def _scores(delta: common_pb2.GenerationDelta, text: tokenizer_pb2.TextDelta) -> tuple[TokenScore, ...]:
    texts = deque(text.lookup_token_bytes)
    return tuple(
        TokenScore(
            tuple(position.token_ids), tuple(position.logprobs),
            tuple(texts.popleft() for _ in position.token_ids), position.rank,
        )
        for position in delta.logprobs
    )  # fmt: skip
