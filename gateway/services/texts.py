"""The text of live choices: their tokens go to the tokenizer service, and what became text comes back.

A choice is at one replica of that service. When it is lost, the choice goes on at another, or at the same once that is
back: the service is told what was answered of the choice, gets the tokens after that again, and goes on exactly where
the lost session stood.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence

from gateway.requests.state import ChoiceState
from gateway.requests.statistics import RequestStatistics
from gateway.services.tokenizers import TextFrame, TokenizerReplica, Tokenizers
from quire.errors import DeadlineExceeded, Internal, QuireError, Unavailable
from quire.options.server import RpcSecurityOptions
from quire.v1 import common_pb2, tokenizer_pb2

logger = logging.getLogger(__name__)

# Tokens of the prompt that the tokenizer service gets as context for the first token's spacing.
_PROMPT_TAIL = 6
# A choice whose text does not go on for so long after a loss fails its request; a service that is started anew takes
# some seconds on a busy machine.
RESUME_SECONDS = 30.0
_RETRY_SECONDS = 0.02
# Choices that go on elsewhere at a time: each has its service read its history and work through some of it, while
# others' text waits (0.15 s at most, where 2,000 choices of 4,000 tokens move; with 64 at a time it was 0.4 s).
_REOPENED_AT_ONCE = 32


class Texts:
    """Owner of all live choices' text. Used from the event loop only.

    Contract: the tokens of each choice come back by `on_text` once and in order, with their text; deltas that waited
    for a replica come as one. A choice that cannot go on fails its request. A choice has another number at each replica
    that it was at, so that nothing of an earlier session is taken for a later one's.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        security: RpcSecurityOptions,
        statistics: RequestStatistics,
        on_text: Callable[[ChoiceState, common_pb2.GenerationDelta, tokenizer_pb2.TextDelta], None],
    ) -> None:
        self.replicas = Tokenizers(addresses, security, self._on_frame, self._on_lost)
        self._statistics = statistics
        self._on_text = on_text
        self._placed: dict[int, tuple[ChoiceState, TokenizerReplica]] = {}
        self._waiting: dict[ChoiceState, None] = {}
        self._some_wait = asyncio.Event()
        self._ids = itertools.count(1)

    @property
    def num_open(self) -> int:
        """Choices under way."""
        return len(self._placed) + len(self._waiting)

    async def run(self) -> None:
        """Keeps the sessions up until cancelled."""
        await asyncio.gather(self.replicas.run(), self._serve_waiting())

    def open(self, choice: ChoiceState) -> None:
        """Begins a choice, whose text can come from now on.

        Raises:
            Overloaded: too much waits for the tokenizer service.
        """
        if not self._place(choice):
            self._wait(choice)

    def add(self, choice: ChoiceState, delta: common_pb2.GenerationDelta) -> None:
        """Has a delta's tokens made text."""
        _, replica = self._placed.get(choice.text_id, (choice, None))
        if replica is None and choice.pending:
            choice.pending[-1].MergeFrom(delta)
            return
        choice.pending.append(delta)
        if replica is not None:
            _fill(replica.add(choice.text_id, delta.ByteSize()), choice, delta)

    def close(self, choice: ChoiceState) -> None:
        """Forgets a choice, whether it has ended or not."""
        self._waiting.pop(choice, None)
        text_id = choice.text_id
        replica = self._take_away(choice)
        if replica and not choice.ended:
            replica.close(text_id)

    def _place(self, choice: ChoiceState) -> bool:
        """Opens the choice, as far as it has come, at a replica; False when none is up.

        Raises:
            Overloaded: too much waits for that replica.
        """
        replica = self.replicas.pick()
        if replica is None:
            return False
        text_id = next(self._ids)
        replica.open(_opening(choice, text_id))
        replica.live += 1
        choice.text_id = text_id
        self._placed[text_id] = choice, replica
        if not choice.pending:
            choice.text_deadline = None
        for delta in choice.pending:
            _fill(replica.add(text_id, delta.ByteSize()), choice, delta)
        return True

    def _take_away(self, choice: ChoiceState) -> TokenizerReplica | None:
        """Where the choice was; it is nowhere then."""
        _, replica = self._placed.pop(choice.text_id, (choice, None))
        choice.text_id = 0
        if replica is not None:
            replica.live -= 1
        return replica

    def _wait(self, choice: ChoiceState) -> None:
        """Has the choice wait for a replica; what it waits with becomes one delta."""
        if choice.text_deadline is None:
            choice.text_deadline = min(choice.stream.deadline, time.monotonic() + RESUME_SECONDS)
        while len(choice.pending) > 1:
            last = choice.pending.pop()
            choice.pending[-1].MergeFrom(last)
        self._waiting[choice] = None
        self._some_wait.set()

    async def _serve_waiting(self) -> None:
        while True:
            await self._some_wait.wait()
            self._place_waiting()
            self._fail_late(time.monotonic())
            if not self._waiting:
                self._some_wait.clear()
            await asyncio.sleep(_RETRY_SECONDS)

    def _place_waiting(self) -> None:
        for choice in list(itertools.islice(self._waiting, _REOPENED_AT_ONCE)):
            try:
                if not self._place(choice):
                    return
            except QuireError:
                return
            del self._waiting[choice]

    def _fail_late(self, now: float) -> None:
        for choice in [choice for choice in self._waiting if now >= (choice.text_deadline or 0.0)]:
            if now >= choice.stream.deadline:
                error: QuireError = DeadlineExceeded("The request did not finish within its time.")
            else:
                error = Unavailable(
                    "The tokenizer service is gone. The answer is not complete; send the request again."
                )
            choice.stream.owner.fail(error)

    def _on_frame(self, frame: TextFrame) -> None:
        for text in frame.deltas:
            choice, _ = self._placed.get(text.stream_id, (None, None))
            if choice is None:
                continue
            if text.error:
                choice.stream.owner.fail(Internal(text.error))
                continue
            choice.text_deadline = None
            self._on_text(choice, choice.pending.popleft(), text)

    def _on_lost(self, replica: TokenizerReplica, error: QuireError) -> None:
        lost = [choice for choice, owner in self._placed.values() if owner is replica]
        if lost:
            logger.warning(
                "tokenizer service %s is lost with %d sequences: %s", replica.address, len(lost), error.message
            )
        self._statistics.texts_moved += len(lost)
        for choice in lost:
            self._take_away(choice)
            self._wait(choice)


def _opening(choice: ChoiceState, text_id: int) -> tokenizer_pb2.DetokenizeOpen:
    """The choice as it stands after all that was answered."""
    options = choice.stream.owner.request.detokenize
    answered = len(choice.delivered) - sum(len(delta.token_ids) for delta in choice.pending)
    return tokenizer_pb2.DetokenizeOpen(
        stream_id=text_id,
        skip_special_tokens=options.skip_special_tokens,
        kept_special_tokens=options.kept_special_tokens,
        stop_strings=options.stop_strings,
        include_stop_string=options.include_stop_string,
        min_tokens=options.min_tokens,
        prompt_tail_token_ids=choice.stream.generation.prompt_token_ids[-_PROMPT_TAIL:],
        history_token_ids=choice.delivered[:answered],
    )


def _fill(tokens: tokenizer_pb2.DetokenizeTokens, choice: ChoiceState, delta: common_pb2.GenerationDelta) -> None:
    tokens.token_ids.extend(delta.token_ids)
    if delta.finish_reason:
        tokens.is_last = True
        keeps = choice.stream.owner.request.detokenize.ends_with_stop_token
        tokens.drop_last_token = delta.finish_reason == common_pb2.FINISH_REASON_STOP and not keeps
    for position in delta.logprobs:
        tokens.lookup_token_ids.extend(position.token_ids)
