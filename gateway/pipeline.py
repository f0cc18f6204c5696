"""The path of tokens: router → tokenizer service → client, one frame at a time for all streams together.

The gateway has one session with the router and one with the tokenizer service. A router frame with the new tokens of
all streams becomes one frame for the tokenizer service; its answer, with the text of all streams, is sorted to the
clients. No task runs per token and stream but the one that writes to the client.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Sequence

from gateway.job import ChoiceEvent, Finish, Job, TokenScore
from gateway.live import LiveChoice, LiveRequest, LiveStream
from gateway.statistics import RequestStatistics
from quire.errors import Internal, QuireError, Unavailable
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel
from quire.rpc.context import current_traceparent
from quire.rpc.session import SessionLink
from quire.rpc.settings import CONNECT_SECONDS
from quire.rpc.status import from_request_error
from quire.v1 import common_pb2, router_pb2, router_pb2_grpc, tokenizer_pb2, tokenizer_pb2_grpc

# Tokens of the prompt that the tokenizer service gets as context for the first token's spacing.
_PROMPT_TAIL = 6
_FINISH = {
    common_pb2.FINISH_REASON_STOP: Finish.STOP,
    common_pb2.FINISH_REASON_LENGTH: Finish.LENGTH,
    common_pb2.FINISH_REASON_ABORT: Finish.ABORT,
}

RouterLink = SessionLink[router_pb2.RouterServiceSessionRequest, router_pb2.RouterServiceSessionResponse]
TextLink = SessionLink[tokenizer_pb2.DetokenizeSessionRequest, tokenizer_pb2.DetokenizeSessionResponse]


class Pipeline:
    """Owner of both sessions and of all live requests. Used from the event loop only."""

    def __init__(
        self, router_address: str, tokenizer_address: str, security: RpcSecurityOptions, statistics: RequestStatistics
    ) -> None:
        self._statistics = statistics
        self._streams: dict[int, LiveStream] = {}
        self._choices: dict[int, LiveChoice] = {}
        self._ids = itertools.count(1)
        self._router_channel = open_channel(router_address, security)
        self._text_channel = open_channel(tokenizer_address, security)
        router = router_pb2_grpc.RouterServiceStub(self._router_channel)
        tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(self._text_channel)
        self.router_link: RouterLink = SessionLink(
            "The router", lambda: router.Session(metadata=call_metadata(security)),
            router_pb2.RouterServiceSessionRequest, self._on_router_frame, self._on_lost,
        )  # fmt: skip
        self.text_link: TextLink = SessionLink(
            "The tokenizer service", lambda: tokenizer.DetokenizeSession(metadata=call_metadata(security)),
            tokenizer_pb2.DetokenizeSessionRequest, self._on_text_frame, self._on_lost, heartbeats=False,
        )  # fmt: skip

    @property
    def num_live(self) -> int:
        """Generations under way."""
        return len(self._streams)

    async def run(self) -> None:
        """Keeps both sessions up until cancelled."""
        try:
            await asyncio.gather(self.router_link.run(), self.text_link.run())
        finally:
            await self._router_channel.close()
            await self._text_channel.close()

    async def start(self, job: Job) -> LiveRequest:
        """Starts a request.

        Raises:
            Unavailable: one of the two services cannot be reached.
        """
        await self.router_link.wait_connected(CONNECT_SECONDS)
        await self.text_link.wait_connected(CONNECT_SECONDS)
        request = LiveRequest(job, self._release)
        for number, prompt in enumerate(job.prompts):
            request.streams.append(self._start_stream(request, number, prompt))
        self._statistics.started(request)
        return request

    def _start_stream(self, request: LiveRequest, number: int, prompt: Sequence[int]) -> LiveStream:
        job = request.job
        stream = LiveStream(request, next(self._ids), [])
        opens = self.text_link.post(job.n).opens
        for choice in range(job.n):
            live = LiveChoice(stream, number * job.n + choice, next(self._ids))
            opens.add(
                stream_id=live.text_id, skip_special_tokens=job.detokenize.skip_special_tokens,
                stop_strings=job.detokenize.stop_strings, include_stop_string=job.detokenize.include_stop_string,
                min_tokens=job.detokenize.min_tokens, prompt_tail_token_ids=prompt[-_PROMPT_TAIL:],
            )  # fmt: skip
            stream.choices.append(live)
            self._choices[live.text_id] = live
        self._streams[stream.stream_id] = stream
        generation = self.router_link.post().starts.add(stream_id=stream.stream_id).generation
        generation.request_id = job.request_id if len(job.prompts) == 1 else f"{job.request_id}-{number}"
        generation.model = job.model
        generation.prompt_token_ids.extend(prompt)
        generation.sampling.CopyFrom(job.sampling)
        generation.priority = job.priority
        generation.cache_salt = job.cache_salt
        generation.timeout_ms = int(job.timeout_seconds * 1000)
        generation.traceparent = current_traceparent()
        return stream

    def _release(self, request: LiveRequest) -> None:
        """Forgets a request that has ended, and stops what other services still do for it."""
        for stream in request.streams:
            if self._streams.pop(stream.stream_id, None) and self.router_link.connected:
                self.router_link.post().abort_stream_ids.append(stream.stream_id)
            for choice in stream.choices:
                if self._choices.pop(choice.text_id, None) and self.text_link.connected:
                    self.text_link.post().close_stream_ids.append(choice.text_id)
        self._statistics.ended(request)

    def _on_router_frame(self, frame: router_pb2.RouterServiceSessionResponse) -> None:
        for delta in frame.deltas:
            stream = self._streams.get(delta.stream_id)
            if stream is None:
                continue
            if delta.HasField("error"):
                del self._streams[delta.stream_id]
                stream.request.fail(from_request_error(delta.error))
                continue
            if delta.is_final:  # the router has forgotten it: there is nothing left to abort
                del self._streams[delta.stream_id]
                stream.usage = delta.usage
            choice = stream.choices[delta.choice_index]
            if not choice.ended:
                self._to_text(choice, delta)

    def _to_text(self, choice: LiveChoice, delta: common_pb2.GenerationDelta) -> None:
        if not self.text_link.connected:
            choice.stream.request.fail(Unavailable("The tokenizer service cannot be reached; try again in a moment."))
            return
        choice.pending.append(delta)
        tokens = self.text_link.post().tokens.add(stream_id=choice.text_id, token_ids=delta.token_ids)
        if delta.finish_reason:
            tokens.is_last = True
            keeps = choice.stream.request.job.detokenize.ends_with_stop_token
            tokens.drop_last_token = delta.finish_reason == common_pb2.FINISH_REASON_STOP and not keeps
        for position in delta.logprobs:
            tokens.lookup_token_ids.extend(position.token_ids)

    def _on_text_frame(self, frame: tokenizer_pb2.DetokenizeSessionResponse) -> None:
        now = time.monotonic()
        for text in frame.deltas:
            choice = self._choices.get(text.stream_id)
            if choice is None:
                continue
            if text.error:
                choice.stream.request.fail(Internal(text.error))
                continue
            delta = choice.pending.popleft()
            event = _event(choice, delta, text)
            request = choice.stream.request
            request.completion_tokens += len(event.token_ids)
            self._statistics.progressed(request, event, now)
            request.push(event)
            if event.finish:
                self._end_choice(choice)

    def _end_choice(self, choice: LiveChoice) -> None:
        choice.ended = True
        self._choices.pop(choice.text_id, None)
        request = choice.stream.request
        request.open_choices -= 1
        if not request.open_choices:
            request.close()

    def _on_lost(self, error: QuireError) -> None:
        """A session broke: the requests it carried cannot go on."""
        for request in {id(stream.request): stream.request for stream in self._streams.values()}.values():
            request.fail(Unavailable(f"{error.message} The answer is not complete; send the request again."))
        for choice in list(self._choices.values()):
            choice.stream.request.fail(error)


def _event(choice: LiveChoice, delta: common_pb2.GenerationDelta, text: tokenizer_pb2.TextDelta) -> ChoiceEvent:
    if not (delta.finish_reason or delta.logprobs or delta.prompt_logprobs or text.HasField("stop_string")):
        return ChoiceEvent(choice.index, text.text, tuple(delta.token_ids))
    token_ids, scores = tuple(delta.token_ids), _scores(delta, text)
    finish = _FINISH.get(delta.finish_reason)
    stop_reason: str | int | None = delta.stop_token_id if delta.HasField("stop_token_id") else None
    if text.HasField("stop_string"):
        finish, stop_reason = Finish.STOP, text.stop_string
        token_ids, scores = token_ids[: text.tokens_used], scores[: text.tokens_used]
    return ChoiceEvent(
        choice.index, text.text, token_ids, scores, tuple(delta.prompt_logprobs), finish, stop_reason
    )  # fmt: skip


def _scores(delta: common_pb2.GenerationDelta, text: tokenizer_pb2.TextDelta) -> tuple[TokenScore, ...]:
    texts = deque(text.lookup_token_bytes)
    return tuple(
        TokenScore(
            tuple(position.token_ids), tuple(position.logprobs),
            tuple(texts.popleft() for _ in position.token_ids), position.rank,
        )
        for position in delta.logprobs
    )  # fmt: skip
