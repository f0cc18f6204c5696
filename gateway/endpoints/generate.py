"""`POST /inference/v1/generate`: token ids in, token ids out, with their text if requested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.collecting import CollectedChoice
from gateway.answers.deltas import ChoiceUpdate, TokenScore, content_of
from gateway.answers.scores import chat_logprobs, prompt_logprobs, token_logprobs
from gateway.answers.stream import EventStream
from gateway.context import GatewayContext, context_of
from gateway.endpoints import completions, kv_transfer
from gateway.endpoints.aborted import read_request_ids
from gateway.endpoints.body import read_json
from gateway.endpoints.generation import GenerationAnswer
from gateway.errors import json_response
from gateway.protocol.chat import ChatLogprobs
from gateway.protocol.completions import CompletionRequest
from gateway.protocol.generate import (
    GenerateChoice,
    GenerateChunk,
    GenerateLogprobs,
    GenerateRequest,
    GenerateResponse,
)
from gateway.requests.caller import tenant_of
from gateway.requests.state import RequestState
from gateway.requests.token_generation import completion_of


async def generate(request: Request) -> Response | EventStream:
    """Continues from token ids."""
    body = await read_json(request, GenerateRequest)
    context, completion = context_of(request), completion_of(body)
    with_text = body.output_mode == "text"
    if with_text:
        context.require_tokenizer("Text", "output_mode")
    generation = await completions.prepare(
        request, completion, default_max_tokens=None, thinks=body.reasoning_ended is not True
    )
    # Stop strings need detokenization, even if the text is not returned.
    wants_text = generation.wants_text and (with_text or bool(generation.detokenize.stop_strings))
    state = await context.pipeline.start(replace(generation, wants_text=wants_text, with_weight_versions=True))
    return await _Answer(context, body, completion, state).respond(request)


async def abort(request: Request) -> Response:
    """Aborts requests of the same tenant in this gateway; unknown ids are ignored."""
    context_of(request).pipeline.abort(await read_request_ids(request), tenant_of(request))
    return json_response({})


class _Answer(GenerationAnswer[CompletionRequest, GenerateChoice]):
    """Formats the outputs for one prompt."""

    def __init__(
        self, context: GatewayContext, body: GenerateRequest, completion: CompletionRequest, state: RequestState
    ) -> None:
        super().__init__(context, completion, state, "generate")
        self._mode = body.output_mode
        self._with_text = body.output_mode == "text"
        self._with_ids = True
        self._prompt = list(self._request.prompts[0].token_ids) if body.return_token_ids else None
        self._first_of_stream: list[int] | UnsetType = UNSET if self._prompt is None else self._prompt

    def opening(self) -> Iterator[bytes]:
        """No events."""
        return iter(())

    def _choice(self, update: ChoiceUpdate) -> GenerateChoice:
        choice = GenerateChoice(index=update.index, routed_experts=self._routed(update.routed_experts))
        if self._with_text:
            choice.text = content_of(update.deltas)
        if update.sampling_masks:
            choice.sampling_mask = update.sampling_masks
        if update.scores:
            choice.logprobs = self._logprobs(update.scores)
        return choice

    def chunk(self, *choices: GenerateChoice) -> GenerateChunk:
        prompt, self._first_of_stream = self._first_of_stream, UNSET
        return GenerateChunk(
            request_id=self._request.request_id, choices=list(choices), output_mode=self._mode,
            usage=self._usage_of_chunk(), prompt_token_ids=prompt,
        )  # fmt: skip

    def _whole(self, choices: Sequence[CollectedChoice], texts: Mapping[int, bytes]) -> GenerateResponse:
        scores = choices[0].prompt_scores
        return GenerateResponse(
            request_id=self._request.request_id,
            choices=[self._whole_choice(index, choice) for index, choice in enumerate(choices)],
            output_mode=self._mode,
            model=self._request.answering_model,
            created=self._created,
            usage=self._usage(),
            prompt_logprobs=prompt_logprobs(scores, texts) if self._body.prompt_logprobs is not None else None,
            prompt_token_ids=self._prompt,
            kv_transfer_params=kv_transfer.told(self._context, self._state),
        )

    def _whole_choice(self, index: int, choice: CollectedChoice) -> GenerateChoice:
        return GenerateChoice(
            index=index,
            token_ids=choice.token_ids,
            text=choice.content if self._with_text else UNSET,
            logprobs=self._logprobs(choice.scores) if self._body.logprobs is not None else None,
            finish_reason=choice.finish.reason.value,
            stop_reason=choice.finish.stop_reason,
            routed_experts=self._routed(choice.routed_experts),
            sampling_mask=choice.sampling_masks or UNSET,
            weight_versions=self._versions(choice.weight_versions),
        )

    def _logprobs(self, scores: Sequence[TokenScore]) -> ChatLogprobs | GenerateLogprobs:
        if self._with_text:
            return chat_logprobs(scores, self._as_ids)
        return token_logprobs(scores, are_likeliest=not self._request.sampling.logprob_token_ids)
