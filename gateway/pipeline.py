"""The path of tokens: router → tokenizer service → client, one frame at a time for all streams together.

The gateway has one session with each router and one with the tokenizer service. A router frame with the new tokens of
all streams becomes one frame for the tokenizer service; its answer, with the text of all streams, is sorted to the
clients. No task runs per token and stream but the one that writes to the client.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Sequence

from gateway.generations import Generations, new_generation
from gateway.job import ChoiceEvent, Finish, Job, TokenScore
from gateway.live import LiveChoice, LiveRequest, LiveStream
from gateway.statistics import RequestStatistics
from quire.errors import Internal, QuireError, Unavailable
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel
from quire.rpc.session import SessionLink
from quire.rpc.settings import CONNECT_SECONDS
from quire.v1 import common_pb2, tokenizer_pb2, tokenizer_pb2_grpc

logger = logging.getLogger(__name__)

# Tokens of the prompt that the tokenizer service gets as context for the first token's spacing.
_PROMPT_TAIL = 6
_FINISH = {
    common_pb2.FINISH_REASON_STOP: Finish.STOP,
    common_pb2.FINISH_REASON_LENGTH: Finish.LENGTH,
    common_pb2.FINISH_REASON_ABORT: Finish.ABORT,
}

TextLink = SessionLink[tokenizer_pb2.DetokenizeSessionRequest, tokenizer_pb2.DetokenizeSessionResponse]


class Pipeline:
    """Owner of all live requests and of the sessions that they need. Used from the event loop only."""

    def __init__(
        self,
        router_addresses: Sequence[str],
        tokenizer_address: str,
        security: RpcSecurityOptions,
        statistics: RequestStatistics,
    ) -> None:
        self._statistics = statistics
        self._choices: dict[int, LiveChoice] = {}
        self._ids = itertools.count(1)
        self._text_channel = open_channel(tokenizer_address, security)
        tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(self._text_channel)
        self.generations = Generations(router_addresses, security, statistics, self._to_text)
        self.text_link: TextLink = SessionLink(
            "The tokenizer service", lambda: tokenizer.DetokenizeSession(metadata=call_metadata(security)),
            tokenizer_pb2.DetokenizeSessionRequest, self._on_text_frame, self._on_text_lost, heartbeats=False,
        )  # fmt: skip

    @property
    def num_live(self) -> int:
        """Sequences under way."""
        return len(self._choices)

    async def run(self) -> None:
        """Keeps the sessions up until cancelled."""
        try:
            await asyncio.gather(self.generations.run(), self.text_link.run())
        finally:
            await self._text_channel.close()

    async def start(self, job: Job) -> LiveRequest:
        """Starts a request, which fails by and by if no router can be reached.

        Raises:
            Unavailable: the tokenizer service cannot be reached.
            Overloaded: it does not read.
        """
        await self.text_link.wait_connected(CONNECT_SECONDS)
        request = LiveRequest(job, self._release)
        try:
            for number in range(len(job.prompts)):
                request.streams.append(self._open_stream(request, number))
        except QuireError:
            request.cancel()
            raise
        self._statistics.started(request)
        for stream in request.streams:
            if not request.closed:
                self.generations.start(stream)
        return request

    def _open_stream(self, request: LiveRequest, number: int) -> LiveStream:
        """The stream of one of the job's prompts, whose text can come from now on."""
        job = request.job
        tail = job.prompts[number].token_ids[-_PROMPT_TAIL:]
        stream = LiveStream(request, new_generation(job, number), time.monotonic() + job.timeout_seconds)
        opens = self.text_link.post(job.n).opens
        for choice in range(job.n):
            live = LiveChoice(stream, number * job.n + choice, next(self._ids))
            opens.add(
                stream_id=live.text_id, skip_special_tokens=job.detokenize.skip_special_tokens,
                stop_strings=job.detokenize.stop_strings, include_stop_string=job.detokenize.include_stop_string,
                min_tokens=job.detokenize.min_tokens, prompt_tail_token_ids=tail,
            )  # fmt: skip
            stream.choices.append(live)
            self._choices[live.text_id] = live
        return stream

    def _release(self, request: LiveRequest) -> None:
        """Forgets a request that has ended, and stops what other services still do for it."""
        for stream in request.streams:
            self.generations.abort(stream)
            for choice in stream.choices:
                if self._choices.pop(choice.text_id, None) and self.text_link.connected:
                    self.text_link.post().close_stream_ids.append(choice.text_id)
        self._statistics.ended(request)

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

    def _on_text_lost(self, error: QuireError) -> None:
        """The state of what is text already and what is not yet is gone: no request can go on."""
        logger.warning("the tokenizer service is lost with %d sequences: %s", len(self._choices), error.message)
        message = "The tokenizer service was lost. The answer is not complete; send the request again."
        for choice in list(self._choices.values()):
            choice.stream.request.fail(Unavailable(message))


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
