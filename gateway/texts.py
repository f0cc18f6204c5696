"""The text of live choices: their tokens go to the tokenizer service, and what became text comes back."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

from gateway.live import LiveChoice
from quire.errors import Internal, QuireError, Unavailable
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel
from quire.rpc.session import SessionLink
from quire.v1 import common_pb2, tokenizer_pb2, tokenizer_pb2_grpc

logger = logging.getLogger(__name__)

# Tokens of the prompt that the tokenizer service gets as context for the first token's spacing.
_PROMPT_TAIL = 6

TextLink = SessionLink[tokenizer_pb2.DetokenizeSessionRequest, tokenizer_pb2.DetokenizeSessionResponse]


class Texts:
    """Owner of the session with the tokenizer service. Used from the event loop only.

    Contract: each delta of a choice comes back by `on_text` once and in order, with its text; a choice that cannot go
    on fails its request.
    """

    def __init__(
        self,
        address: str,
        security: RpcSecurityOptions,
        on_text: Callable[[LiveChoice, common_pb2.GenerationDelta, tokenizer_pb2.TextDelta], None],
    ) -> None:
        self._on_text = on_text
        self._choices: dict[int, LiveChoice] = {}
        self._ids = itertools.count(1)
        self._channel = open_channel(address, security)
        tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(self._channel)
        self.link: TextLink = SessionLink(
            "The tokenizer service", lambda: tokenizer.DetokenizeSession(metadata=call_metadata(security)),
            tokenizer_pb2.DetokenizeSessionRequest, self._on_frame, self._on_lost, heartbeats=False,
        )  # fmt: skip

    @property
    def connected(self) -> bool:
        """Whether the tokenizer service is there."""
        return self.link.connected

    @property
    def num_open(self) -> int:
        """Choices under way."""
        return len(self._choices)

    async def run(self) -> None:
        """Keeps the session up until cancelled."""
        try:
            await self.link.run()
        finally:
            await self._channel.close()

    async def wait_connected(self, timeout: float) -> None:
        """Waits for the tokenizer service.

        Raises:
            Unavailable: it did not come in `timeout` seconds.
        """
        await self.link.wait_connected(timeout)

    def open(self, choice: LiveChoice) -> None:
        """Begins a choice, whose text can come from now on.

        Raises:
            QuireError: there is no session, or its peer does not read.
        """
        job = choice.stream.request.job
        choice.text_id = next(self._ids)
        opening = tokenizer_pb2.DetokenizeOpen(
            stream_id=choice.text_id, skip_special_tokens=job.detokenize.skip_special_tokens,
            stop_strings=job.detokenize.stop_strings, include_stop_string=job.detokenize.include_stop_string,
            min_tokens=job.detokenize.min_tokens,
            prompt_tail_token_ids=choice.stream.generation.prompt_token_ids[-_PROMPT_TAIL:],
        )  # fmt: skip
        self.link.post(1, opening.ByteSize()).opens.append(opening)
        self._choices[choice.text_id] = choice

    def add(self, choice: LiveChoice, delta: common_pb2.GenerationDelta) -> None:
        """Has a delta's tokens made text."""
        try:
            frame = self.link.post()
        except QuireError as error:  # this request's trouble, not that of the session with the router
            choice.stream.request.fail(error)
            return
        choice.pending.append(delta)
        tokens = frame.tokens.add(stream_id=choice.text_id, token_ids=delta.token_ids)
        if delta.finish_reason:
            tokens.is_last = True
            keeps = choice.stream.request.job.detokenize.ends_with_stop_token
            tokens.drop_last_token = delta.finish_reason == common_pb2.FINISH_REASON_STOP and not keeps
        for position in delta.logprobs:
            tokens.lookup_token_ids.extend(position.token_ids)

    def close(self, choice: LiveChoice) -> None:
        """Forgets a choice, whether it has ended or not."""
        if self._choices.pop(choice.text_id, None) and not choice.ended and self.link.connected:
            self.link.post(0).close_stream_ids.append(choice.text_id)

    def _on_frame(self, frame: tokenizer_pb2.DetokenizeSessionResponse) -> None:
        for text in frame.deltas:
            choice = self._choices.get(text.stream_id)
            if choice is None:
                continue
            if text.error:
                choice.stream.request.fail(Internal(text.error))
                continue
            self._on_text(choice, choice.pending.popleft(), text)

    def _on_lost(self, error: QuireError) -> None:
        """The state of what is text already and what is not yet is gone: no request can go on."""
        logger.warning("the tokenizer service is lost with %d sequences: %s", len(self._choices), error.message)
        message = "The tokenizer service was lost. The answer is not complete; send the request again."
        for choice in list(self._choices.values()):
            choice.stream.request.fail(Unavailable(message))
