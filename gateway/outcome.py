"""A request's events put together, for answers that are not streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.requests import Request

from gateway.context import context_of
from gateway.job import ChoiceEvent, FailureEvent, Finish, Job, TokenScore
from gateway.live import LiveRequest
from gateway.protocol.common import PromptTokensDetails, Usage
from quire.errors import Cancelled, QuireError
from quire.v1 import common_pb2

_WAIT_SECONDS = 60.0


@dataclass
class ChoiceOutcome:
    """All of one choice."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    prompt_scores: tuple[common_pb2.TokenLogprobs, ...] = ()
    finish: Finish | None = None
    stop_reason: str | int | None = None

    def add(self, event: ChoiceEvent) -> None:
        """Adds what an event brought."""
        self.text += event.text
        self.token_ids += event.token_ids
        self.scores += event.scores
        self.prompt_scores = self.prompt_scores or event.prompt_scores
        self.finish = event.finish
        self.stop_reason = event.stop_reason


async def collect(live: LiveRequest, http: Request) -> list[ChoiceOutcome]:
    """Waits for all choices; a client that goes away ends the request.

    Raises:
        QuireError: the request failed.
        Cancelled: the client has gone.
    """
    outcomes = [ChoiceOutcome() for _ in range(live.job.choices)]
    watcher = asyncio.ensure_future(watch_disconnect(http, live))
    try:
        while (batch := await live.next_batch(_WAIT_SECONDS)) != []:
            for event in batch or ():
                if isinstance(event, FailureEvent):
                    raise event.error
                outcomes[event.index].add(event)
                live.completion_tokens += len(event.token_ids)
    finally:
        watcher.cancel()
        live.close()
    if any(outcome.finish is None for outcome in outcomes):
        raise Cancelled("The client has gone.")
    return outcomes


def answer_size(outcomes: Sequence[ChoiceOutcome], job: Job, with_ids: bool) -> int:
    """About how many tokens the answer tells of, alternatives counted.

    Args:
        with_ids: each choice has its prompt's token ids.
    """
    size = sum(len(prompt.token_ids) for prompt in job.prompts) * job.n if with_ids else 0
    for outcome in outcomes:
        size += len(outcome.token_ids) + sum(len(score.token_ids) for score in outcome.scores)
        if outcome.prompt_scores:
            size += len(outcome.prompt_scores) * len(outcome.prompt_scores[0].token_ids)
    return size


async def prompt_texts(
    http: Request, outcomes: Sequence[ChoiceOutcome], others: Iterable[int] = ()
) -> Mapping[int, bytes]:
    """The bytes of each token that is in the prompts' scores, and of the others."""
    context = context_of(http)
    ids = set(others)
    if any(outcome.prompt_scores for outcome in outcomes):
        ids |= await context.large_requests.run(_scored_ids, outcomes)
    return await context.tokenizer.token_bytes(ids) if ids else {}


def _scored_ids(outcomes: Sequence[ChoiceOutcome]) -> set[int]:
    return {token_id for outcome in outcomes for score in outcome.prompt_scores for token_id in score.token_ids}


async def watch_disconnect(http: Request, live: LiveRequest) -> None:
    """Cancels the request when its client goes away."""
    while (await http.receive())["type"] != "http.disconnect":
        continue
    live.cancel()


def first_error(batch: list[ChoiceEvent | FailureEvent]) -> QuireError | None:
    """The error in a batch, if there is one."""
    return next((event.error for event in batch if isinstance(event, FailureEvent)), None)


def usage_of(live: LiveRequest, details: bool) -> Usage:
    """Tokens so far."""
    usage = Usage(live.prompt_tokens, live.prompt_tokens + live.completion_tokens, live.completion_tokens)
    if details:
        usage.prompt_tokens_details = PromptTokensDetails(live.cached_tokens)
    return usage
