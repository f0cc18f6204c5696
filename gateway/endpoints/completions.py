"""`POST /v1/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from gateway import large
from gateway.caller import Caller, caller_of
from gateway.context import GatewayContext, context_of
from gateway.convert import context_bound, make_job, tokenized
from gateway.job import ChoiceEvent, Job, TokenizedPrompt
from gateway.large import beside
from gateway.live import LiveRequest
from gateway.outcome import ChoiceOutcome, answer_size, collect, prompt_texts, usage_of
from gateway.protocol.completions import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest
from gateway.protocol.decode import read_json
from gateway.scores import CompletionScores, merge, prompt_logprobs, score_of
from gateway.services import decode_request
from gateway.stream import EventStream
from gateway.validate import check_choices, check_generation, check_logprobs
from quire.bounds import check_context_length, check_token_ids
from quire.errors import InvalidRequest
from quire.v1 import common_pb2

_DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True)
class Prompt:
    """One prompt in both forms; the text is known only where it is echoed."""

    token_ids: tuple[int, ...]
    text: str = ""


async def completions(request: Request) -> Response | EventStream:
    """Continues prompts."""
    context = context_of(request)
    body = await read_json(request, CompletionRequest)
    model = context.fleet.model(body.model)
    _check(body, model)
    caller = caller_of(request, body)
    tokens = await _tokenized(request, body, model, caller)
    job = make_job(
        body, tokens, model, max_tokens=body.max_tokens, default_max_tokens=_DEFAULT_MAX_TOKENS,
        logprobs=body.logprobs, prompt_logprobs=_prompt_logprobs(body), caller=caller,
        options=context.options,
    )  # fmt: skip
    prompts = [
        Prompt(prompt.token_ids, await context.tokenizer.decode(decode_request(prompt.token_ids)) if body.echo else "")
        for prompt in job.prompts
    ]
    live = await context.pipeline.start(job)
    answer = _Answer(context, body, job, prompts, live)
    if body.stream:
        return EventStream(live, answer.opening(), answer.chunks, answer.closing)
    outcomes = await collect(live, request)
    first_ids = (prompt.token_ids[0] for prompt in prompts if body.echo and body.logprobs is not None)
    texts = await prompt_texts(request, outcomes, first_ids)
    size = answer_size(outcomes, job, bool(body.return_token_ids))
    return await large.answer(request, size, lambda: answer.whole(outcomes, texts))


def _check(body: CompletionRequest, model: common_pb2.ModelInfo) -> None:
    """
    Raises:
        InvalidRequest: a field of this endpoint is wrong.
    """
    check_generation(body, model)
    check_logprobs("logprobs", body.logprobs, model.max_logprobs)
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequest("max_tokens is 0, which asks for nothing without echo.", parameter="max_tokens")
    if body.echo and body.stream and body.logprobs is not None:
        raise InvalidRequest("echo with logprobs is not available in streams.", parameter="echo")


def _prompt_logprobs(body: CompletionRequest) -> int | None:
    """With echo, the prompt is scored as the output is; a prompt only computed is scored in any case."""
    if body.echo and body.logprobs is not None:
        return max(body.logprobs, body.prompt_logprobs or 0)
    return 0 if body.prompt_logprobs is None and body.max_tokens == 0 else body.prompt_logprobs


async def _tokenized(
    request: Request, body: CompletionRequest, model: common_pb2.ModelInfo, caller: Caller
) -> list[TokenizedPrompt]:
    """Each prompt as token ids.

    Raises:
        InvalidRequest: prompts of several kinds, none, or too many.
        ContextTooLong: one that does not fit the model.
    """
    context, prompt = context_of(request), body.prompt
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        prompt = [prompt]  # type: ignore[list-item]  # one prompt, as text or as ids, which are checked below
    prompts = cast("list[str | list[int]]", prompt)
    check_choices(len(prompts), body.n, context.options.max_choices_per_request)
    if texts := [item for item in prompts if isinstance(item, str)]:
        if len(texts) != len(prompts):
            raise InvalidRequest("prompt mixes texts and token ids; send one kind.", parameter="prompt")
        sequences = await context.tokenizer.encode(
            texts, body.add_special_tokens, block_size=model.block_size, cache_salt=caller.cache_salt,
            max_tokens=context_bound(body, model),
        )  # fmt: skip
        return await beside(request, lambda: [tokenized(sequence) for sequence in sequences])
    return await beside(request, _checked, prompts, model.vocab_size, context_bound(body, model))


def _checked(lists: Sequence[Any], vocab_size: int, max_tokens: int) -> list[TokenizedPrompt]:
    """Prompts that came as token ids.

    Raises:
        InvalidRequest: one is no list of token ids.
        ContextTooLong: one does not fit the model.
    """
    for token_ids in lists:
        if max_tokens and isinstance(token_ids, list):
            check_context_length(len(token_ids), 0, max_tokens)  # before its ids are looked at
        if not isinstance(token_ids, list) or not set(map(type, token_ids)) <= {int}:
            raise InvalidRequest("prompt mixes token ids and lists of them; send one kind.", parameter="prompt")
        check_token_ids("prompt", token_ids, vocab_size)
    return [TokenizedPrompt(tuple(token_ids)) for token_ids in lists]


class _Answer:
    """One request's answer in either form."""

    def __init__(
        self, context: GatewayContext, body: CompletionRequest, job: Job, prompts: list[Prompt], live: LiveRequest
    ) -> None:
        self._context = context
        self._body = body
        self._job = job
        self._prompts = prompts
        self._live = live
        self._id = f"cmpl-{job.request_id}"
        self._created = int(time.time())
        self._as_ids = bool(body.return_tokens_as_token_ids or context.options.return_tokens_as_token_ids)
        self._scores = [CompletionScores(self._as_ids) for _ in range(job.choices)]
        self._begun: set[int] = set()
        options = body.stream_options
        self._usage_at_end = context.options.enable_force_include_usage or bool(options and options.include_usage)
        self._usage_always = bool(options and options.include_usage and options.continuous_usage_stats)

    def opening(self) -> Iterator[Completion]:
        """The prompts, if they are echoed."""
        if self._body.echo:
            for index in range(len(self._scores)):
                yield self._chunk(CompletionChoice(index, self._prompts[index // self._job.n].text))

    def chunks(self, event: ChoiceEvent) -> Iterator[Completion]:
        """An event's chunk; none for one that has nothing to show.

        A choice's first token shows even where it is no text yet (a part of a character): its client learns that the
        prompt is computed.
        """
        begins = event.index not in self._begun
        if not (begins or event.text or event.finish or event.scores or self._body.return_token_ids):
            return
        self._begun.add(event.index)
        choice = CompletionChoice(event.index, event.text)
        if event.scores:
            choice.logprobs = self._scores[event.index].take(event.scores)
        if self._body.return_token_ids:
            choice.token_ids = list(event.token_ids)
        if event.finish:
            choice.finish_reason = event.finish.value
            choice.stop_reason = event.stop_reason
        yield self._chunk(choice)

    def closing(self) -> Iterator[Completion]:
        """Usage, if asked for."""
        if self._usage_at_end:
            chunk = self._chunk()
            chunk.usage = usage_of(self._live, self._context.options.enable_prompt_tokens_details)
            yield chunk

    def _chunk(self, *choices: CompletionChoice) -> Completion:
        usage = usage_of(self._live, False) if self._usage_always else UNSET
        return Completion(self._id, "text_completion", self._created, self._job.answering_model, list(choices), usage)

    def whole(self, outcomes: list[ChoiceOutcome], texts: Mapping[int, bytes]) -> Completion:
        """The answer in one piece.

        Args:
            texts: the bytes of the tokens in the prompts' scores.
        """
        answer = self._chunk(*(self._choice(index, outcomes, texts) for index in range(len(outcomes))))
        answer.usage = usage_of(self._live, self._context.options.enable_prompt_tokens_details)
        return answer

    def _choice(self, index: int, outcomes: list[ChoiceOutcome], texts: Mapping[int, bytes]) -> CompletionChoice:
        outcome, prompt = outcomes[index], self._prompts[index // self._job.n]
        # The engine scores a prompt once, with its first choice.
        prompt_scores = outcomes[index - index % self._job.n].prompt_scores
        with_ids = self._body.return_token_ids
        return CompletionChoice(
            index,
            prompt.text + outcome.text if self._body.max_tokens != 0 else prompt.text,
            self._logprobs(index, outcome, prompt, prompt_scores, texts),
            outcome.finish.value if outcome.finish else None,
            outcome.stop_reason,
            outcome.token_ids if with_ids else None,
            prompt_logprobs(prompt_scores, texts) if self._body.prompt_logprobs is not None else None,
            list(prompt.token_ids) if with_ids else None,
        )

    def _logprobs(
        self,
        index: int,
        outcome: ChoiceOutcome,
        prompt: Prompt,
        prompt_scores: tuple[common_pb2.TokenLogprobs, ...],
        texts: Mapping[int, bytes],
    ) -> CompletionLogprobs | None:
        if self._body.logprobs is None:
            return None
        scores = self._scores[index]
        parts = []
        if self._body.echo:
            parts.append(scores.take_unscored(prompt.token_ids[0], texts[prompt.token_ids[0]]))
            parts.append(scores.take([score_of(position, texts) for position in prompt_scores]))
        parts.append(scores.take(outcome.scores))
        return merge(parts)
