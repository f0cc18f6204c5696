"""`POST /v1/completions`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.collecting import CollectedChoice
from gateway.answers.deltas import ChoiceUpdate, PromptScore, content_of
from gateway.answers.echoes import PromptsFirst
from gateway.answers.events import event
from gateway.answers.scores import CompletionScores, merge, prompt_logprobs, score_of
from gateway.answers.stream import EventStream, UpdateSource
from gateway.context import GatewayContext, context_of
from gateway.endpoints import kv_transfer
from gateway.endpoints.bad_words import bad_word_runs
from gateway.endpoints.body import read_json
from gateway.endpoints.generation import GenerationAnswer, compiled
from gateway.endpoints.large import beside
from gateway.media.settings import check_no_media_settings
from gateway.protocol.completions import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest
from gateway.requests.caller import Caller, caller_of
from gateway.requests.constraint import constraint_of
from gateway.requests.convert import context_bound, make_generation_request
from gateway.requests.generation_request import GenerationRequest, TokenizedPrompt
from gateway.requests.prompt_embeds import read_prompt_embeds
from gateway.requests.served_model import ServedModel
from gateway.requests.state import RequestState
from gateway.requests.token_ids_only import check_token_ids_only
from gateway.requests.validate import (
    check_choices,
    check_generation,
    check_logprobs,
    check_token_offsets,
    num_alternatives,
)
from quire.bounds import check_context_length, check_token_ids
from quire.errors import InvalidRequest
from quire.runners import GENERATE

_DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True)
class Prompt:
    """One prompt in both forms; the texts are filled in only if the answer shows them."""

    token_ids: tuple[int, ...]
    text: str = ""  # as the model receives it, including special tokens
    echo: str = ""  # as sent by the client
    first: bytes = b""  # bytes of its first token, if its logprobs are echoed


async def completions(request: Request) -> Response | EventStream:
    """Continues prompts."""
    return await complete(request, await read_json(request, CompletionRequest))


async def complete(request: Request, body: CompletionRequest) -> Response | EventStream:
    """Continues the prompts of a body."""
    context, generation = context_of(request), await prepare(request, body)
    prompts = await _shown(context, body, [prompt.token_ids for prompt in generation.prompts])
    answer = CompletionAnswer(context, body, await context.pipeline.start(generation), prompts)
    return await answer.respond(request)


async def prepare(
    request: Request,
    body: CompletionRequest,
    *,
    default_max_tokens: int | None = _DEFAULT_MAX_TOKENS,
    thinks: bool = False,
    renders: bool = False,
) -> GenerationRequest:
    """Checks and tokenizes the prompts, and returns the generation request.

    Args:
        default_max_tokens: see `make_generation_request`.
        thinks: whether the prompt is a conversation about which the model may still have to reason.
        renders: whether the prompts are what is answered.
    """
    context = context_of(request)
    model = context.fleet.model(body.model, GENERATE)
    check(body, model)
    check_token_offsets(body, renders=renders)
    if context.options.skip_tokenizer_init:
        check_token_ids_only(body)
    caller = caller_of(request, body)
    constraint, tokens = await asyncio.gather(
        compiled(context, constraint_of(body)), _tokenized(request, body, model, caller)
    )
    thinking = None
    if thinks and context.reasoning:
        prompt = await context.tokenizer.decode(tokens[0].token_ids)
        thinking = await context.reasoning.thinking(prompt, is_constrained=constraint is not None)
    generation = make_generation_request(
        body, tokens, model, constraint=constraint, max_tokens=body.max_tokens, default_max_tokens=default_max_tokens,
        logprobs=num_alternatives(body.logprobs, model), prompt_logprobs=_prompt_logprobs(body, model),
        bad_words=await bad_word_runs(context.tokenizer, body.bad_words or ()), caller=caller, options=context.options,
        thinking=thinking,
    )  # fmt: skip
    return kv_transfer.taking_part(context, body.kv_transfer_params, generation)


async def _shown(context: GatewayContext, body: CompletionRequest, prompts: Sequence[tuple[int, ...]]) -> list[Prompt]:
    """Returns the prompts in the form that the answer shows."""
    texts = echoes = [""] * len(prompts)
    sent = _sent_texts(body)
    if body.return_prompt_text or (body.echo and not sent):
        texts = [await context.tokenizer.decode(token_ids) for token_ids in prompts]
    if body.echo:
        echoes = sent or texts
    firsts: Mapping[int, bytes] = {}
    if _echoes_scores(body):
        firsts = await context.tokenizer.token_bytes({token_ids[0] for token_ids in prompts})
    return [
        Prompt(token_ids, text, echo, firsts[token_ids[0]] if firsts else b"")
        for token_ids, text, echo in zip(prompts, texts, echoes, strict=True)
    ]


def _sent_texts(body: CompletionRequest) -> list[str]:
    """Returns the prompts as sent, if they are texts; empty if the model receives something else."""
    sent = [body.prompt] if isinstance(body.prompt, str) else body.prompt or []
    is_changed = body.truncate_prompt_tokens is not None or body.suffix
    return [] if is_changed else [text for text in sent if isinstance(text, str)]


def _echoes_scores(body: CompletionRequest) -> bool:
    return bool(body.echo and body.logprobs is not None)


def check(body: CompletionRequest, model: ServedModel) -> None:
    """
    Raises:
        InvalidRequest: a field of this endpoint is invalid.
    """
    check_generation(body, model)
    check_no_media_settings(body)
    check_logprobs("logprobs", body.logprobs, model)
    if body.logprob_token_ids and body.logprobs is None:
        raise InvalidRequest(
            "logprob_token_ids needs logprobs; set it, for example to 0.", parameter="logprob_token_ids"
        )
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequest("max_tokens is 0; without echo, it must be at least 1.", parameter="max_tokens")
    if body.use_beam_search and body.max_tokens != 0 and _echoes_scores(body):
        raise InvalidRequest(
            "echo with logprobs, which scores the prompt, cannot be used with use_beam_search; leave one out.",
            parameter="echo",
        )


def _prompt_logprobs(body: CompletionRequest, model: ServedModel) -> int | None:
    """With echo, the prompt is scored like the output; without an output, it is always scored."""
    logprobs, wanted = num_alternatives(body.logprobs, model), num_alternatives(body.prompt_logprobs, model)
    if body.echo and logprobs is not None:
        return max(logprobs, wanted or 0)
    return 0 if wanted is None and body.max_tokens == 0 else wanted


async def _tokenized(
    request: Request, body: CompletionRequest, model: ServedModel, caller: Caller
) -> list[TokenizedPrompt]:
    """Tokenizes the prompts; embeddings come first.

    Raises:
        InvalidRequest: there are prompts of several kinds, none, or too many; or the model does not take embeddings.
        ContextTooLong: a prompt does not fit the model.
    """
    context, prompt, files = context_of(request), body.prompt, _embeds_files(body)
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        prompt = [prompt]  # type: ignore[list-item]  # one prompt, as text or as ids, which are checked below
    prompts = cast("list[str | list[int]]", [] if files and prompt == [""] else prompt or [])
    check_choices(len(files) + len(prompts), body.num_sequences, context.options.max_choices_per_request)
    bound = context_bound(body, model)
    embeds = await beside(request, read_prompt_embeds, files, model, bound, caller.cache_salt) if files else []
    return [*embeds, *(await _tokenized_prompts(request, body, model, caller, prompts) if prompts else [])]


def _embeds_files(body: CompletionRequest) -> list[str]:
    """
    Raises:
        InvalidRequest: there are prompt embeddings, and a field that cannot be combined with them.
    """
    files = [body.prompt_embeds] if isinstance(body.prompt_embeds, str) else body.prompt_embeds or []
    for name in ("echo", "prompt_logprobs", "return_prompt_text", "suffix"):
        if files and getattr(body, name) not in (None, False, ""):
            raise InvalidRequest(f"{name} cannot be used with prompt_embeds, which are not tokens.", parameter=name)
    return files


async def _tokenized_prompts(
    request: Request, body: CompletionRequest, model: ServedModel, caller: Caller, prompts: list[str | list[int]]
) -> list[TokenizedPrompt]:
    """Tokenizes the prompts given as text or token ids; raises as `_tokenized`."""
    context = context_of(request)
    if texts := [item for item in prompts if isinstance(item, str)]:
        if len(texts) != len(prompts):
            raise InvalidRequest("prompt mixes texts and token ids; send one kind.", parameter="prompt")
        context.require_tokenizer("A text prompt", "prompt")
        return await context.tokenizer.encode(
            texts, body.add_special_tokens, block_size=model.block_size, cache_salt=caller.cache_salt,
            adapter=model.revision, max_tokens=context_bound(body, model), suffix=body.suffix or None,
            with_offsets=bool(body.return_token_offsets and not body.suffix),
        )  # fmt: skip
    if body.suffix:
        raise InvalidRequest("suffix needs text prompts.", parameter="suffix")
    return await beside(request, _checked, prompts, model.vocab_size, context_bound(body, model))


def _checked(lists: Sequence[Any], vocab_size: int, max_tokens: int) -> list[TokenizedPrompt]:
    """Checks prompts given as token ids.

    Raises:
        InvalidRequest: one is not a list of token ids.
        ContextTooLong: one does not fit the model.
    """
    for token_ids in lists:
        if max_tokens and isinstance(token_ids, list):
            check_context_length(len(token_ids), 0, max_tokens)  # before checking its ids
        if not isinstance(token_ids, list) or not set(map(type, token_ids)) <= {int}:
            raise InvalidRequest("prompt mixes token ids and lists of them; send one kind.", parameter="prompt")
        check_token_ids("prompt", token_ids, vocab_size)
    return [TokenizedPrompt(tuple(token_ids)) for token_ids in lists]


class CompletionAnswer(GenerationAnswer[CompletionRequest, CompletionChoice]):
    """Formats the continuations of the prompts."""

    def __init__(
        self,
        context: GatewayContext,
        body: CompletionRequest,
        state: RequestState,
        prompts: list[Prompt],
        text_offset: int = 0,
    ) -> None:
        """
        Args:
            text_offset: offset of each choice's first token in its logprobs.
        """
        super().__init__(context, body, state, "cmpl")
        self._prompts = prompts
        self._scores = [CompletionScores(self._as_ids, text_offset) for _ in range(self._request.choices)]
        self._echoes: dict[int, CompletionLogprobs] = {}  # by choice, until it begins
        self._begun: set[int] = set()

    @property
    def text_offset(self) -> int:
        """Offset of the first choice's next token."""
        return self._scores[0].offset

    def opening(self) -> Iterator[bytes]:
        """No events: prompt data comes with the first tokens of its choices."""
        return iter(())

    def _source(self) -> UpdateSource[ChoiceUpdate]:
        if not _echoes_scores(self._body):
            return super()._source()
        return PromptsFirst(self._state, self._request.n, self._learn)

    async def _learn(self, update: ChoiceUpdate) -> None:
        """Prepares the echo of a prompt's choices, once its scores have arrived."""
        texts = await self._texts([update.prompt_scores])
        choices = range(update.index, update.index + self._request.n)

        def echo() -> None:
            for index in choices:
                self._echo(index, update.prompt_scores, texts)

        await self._context.large_requests.run(echo)

    def _echo(self, index: int, positions: Sequence[PromptScore], texts: Mapping[int, bytes]) -> None:
        """Makes a choice begin with its prompt's scores."""
        prompt, scores = self._prompts[index // self._request.n], self._scores[index]
        found = [score_of(position, texts) for position in positions]
        self._echoes[index] = scores.take_prompt(prompt.echo, prompt.token_ids[0], prompt.first, found)

    def update(self, update: ChoiceUpdate) -> Iterable[bytes]:
        """See GenerationAnswer. A choice's first token is sent even if it is not yet text (part of a character).

        The client learns from it that prefill is done.
        """
        begins = update.index not in self._begun
        choice = self.taken(update)
        return (event(self.chunk(choice)),) if begins or self._shows(update) else ()

    def _choice(self, update: ChoiceUpdate) -> CompletionChoice:
        choice = CompletionChoice(update.index, content_of(update.deltas))
        if update.scores:
            choice.logprobs = self._scores[update.index].take(update.scores)
        if update.index not in self._begun:
            self._begun.add(update.index)
            self._tell_prompt(choice)
        return choice

    def _tell_prompt(self, choice: CompletionChoice) -> None:
        """Adds the prompt's data to a choice that begins."""
        prompt = self._prompts[choice.index // self._request.n]
        if self._body.echo:
            choice.text = prompt.echo + choice.text
        if echo := self._echoes.pop(choice.index, None):
            choice.logprobs = merge([echo, choice.logprobs] if choice.logprobs else [echo])
        if self._with_ids:
            choice.prompt_token_ids = list(prompt.token_ids) or None
        if self._body.return_prompt_text:
            choice.prompt_text = prompt.text

    def chunk(self, *choices: CompletionChoice) -> Completion:
        return Completion(
            self._id, "text_completion", self._created, self._request.answering_model, list(choices),
            self._usage_of_chunk(), self._fingerprint_of_chunk(choices),
        )  # fmt: skip

    def _whole(self, choices: Sequence[CollectedChoice], texts: Mapping[int, bytes]) -> Completion:
        answer = self.chunk(*(self._whole_choice(index, choices, texts) for index in range(len(choices))))
        answer.usage = self._usage()
        answer.kv_transfer_params = kv_transfer.told(self._context, self._state)
        return answer

    def _whole_choice(
        self, index: int, choices: Sequence[CollectedChoice], texts: Mapping[int, bytes]
    ) -> CompletionChoice:
        collected = choices[index]
        # The engine scores a prompt once, with its first choice.
        prompt_scores = choices[index - index % self._request.n].prompt_scores
        if _echoes_scores(self._body):
            self._echo(index, prompt_scores, texts)
        choice = CompletionChoice(
            index,
            collected.content,
            self._scores[index].take(collected.scores) if self._body.logprobs is not None else None,
            collected.finish.reason.value,
            collected.finish.stop_reason,
            collected.token_ids if self._with_ids else None,
            prompt_logprobs(prompt_scores, texts) if self._body.prompt_logprobs is not None else None,
            None,
            routed_experts=self._routed(collected.routed_experts),
            weight_versions=self._versions(collected.weight_versions),
        )
        self._tell_prompt(choice)
        return choice
