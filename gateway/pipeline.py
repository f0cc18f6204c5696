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
from gateway.requests.generation_request import Job
from gateway.requests.state import LiveChoice, LiveRequest, LiveStream
from gateway.requests.statistics import RequestStatistics
from gateway.services.router_streams import Generations, new_generation
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
        self.generations = Generations(router_addresses, security, statistics, self._on_tokens)
        self._room = ChoiceRoom()

    @property
    def num_live(self) -> int:
        """Sequences whose text is under way."""
        return self.texts.num_open

    async def run(self) -> None:
        """Keeps the sessions up until cancelled."""
        await asyncio.gather(self.generations.run(), self.texts.run())

    async def start(self, job: Job) -> LiveRequest:
        """Starts a request, which fails by and by if no router can be reached.

        Raises:
            Unavailable: the tokenizer service cannot be reached.
            Overloaded: it does not read, or too many choices run already.
        """
        if job.wants_text:
            await self.texts.replicas.wait_up(min(CALL_SECONDS, job.timeout_seconds))
        self._room.enter(job.tenant, job.choices)
        request = LiveRequest(job, self._release)
        self._statistics.started(request)
        try:
            for number in range(len(job.prompts)):
                if request.closed:
                    break
                stream = self._open_stream(request, number)
                self.generations.start(stream)
                await asyncio.sleep(0)  # others have their turn, and no service gets all in one frame
        except BaseException:
            request.cancel()
            raise
        return request

    def _open_stream(self, request: LiveRequest, number: int) -> LiveStream:
        """The stream of one of the job's prompts, whose text can come from now on."""
        job = request.job
        stream = LiveStream(request, new_generation(job, number, self._seeds), time.monotonic() + job.timeout_seconds)
        request.streams.append(stream)
        for index in range(job.n):
            choice = LiveChoice(stream, number * job.n + index)
            stream.choices.append(choice)
            if job.wants_text:
                self.texts.open(choice)
        return stream

    def _release(self, request: LiveRequest) -> None:
        """Forgets a request that has ended, and stops what other services still do for it."""
        for stream in request.streams:
            self.generations.abort(stream)
            for choice in stream.choices:
                self.texts.close(choice)
        self._room.leave(request.job.tenant, request.job.choices)
        self._statistics.ended(request)

    def _on_tokens(self, choice: LiveChoice, delta: common_pb2.GenerationDelta) -> None:
        if choice.stream.request.job.wants_text:
            self.texts.add(choice, delta)
        else:
            self._on_text(choice, delta, _NO_TEXT)

    def _on_text(self, choice: LiveChoice, delta: common_pb2.GenerationDelta, text: tokenizer_pb2.TextDelta) -> None:
        update = _update(choice, delta, text)
        request = choice.stream.request
        choice.num_tokens += len(update.token_ids)
        self._statistics.progressed(request, update, time.monotonic())
        request.push(update)
        if update.finish:
            self._end_choice(choice)

    def _end_choice(self, choice: LiveChoice) -> None:
        choice.ended = True
        self.texts.close(choice)
        if not choice.finished:
            self.generations.stop(choice)
        request = choice.stream.request
        request.open_choices -= 1
        request.settle()


def _update(choice: LiveChoice, delta: common_pb2.GenerationDelta, text: tokenizer_pb2.TextDelta) -> ChoiceUpdate:
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
