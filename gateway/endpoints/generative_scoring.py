"""`POST /generative_scoring`: how likely a generative model is to continue a query and an item with a label token.

Nothing is sampled: one token is generated per prompt, only for the labels' log-probabilities at its position.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.collecting import CollectedChoice, collect
from gateway.context import GatewayContext, context_of
from gateway.endpoints import large
from gateway.endpoints.body import read_json
from gateway.endpoints.large import beside
from gateway.endpoints.pooled import now
from gateway.protocol.common import Usage
from gateway.protocol.completions import CompletionRequest
from gateway.protocol.scoring import GenerativeScoringRequest, Score, ScoreResponse
from gateway.requests.caller import caller_of
from gateway.requests.convert import make_generation_request
from gateway.requests.generation_request import TokenizedPrompt
from gateway.requests.served_model import ServedModel
from gateway.requests.validate import check_choices, check_generation
from quire.bounds import check_token_ids
from quire.errors import InvalidRequest
from quire.rpc.context import current_request_id
from quire.runners import GENERATE


async def generative_scoring(request: Request) -> Response:
    """Scores each item by the probability of the first label."""
    body = await read_json(request, GenerativeScoringRequest)
    context = context_of(request)
    model = context.fleet.model(body.model, GENERATE)
    asked = _completion(body)
    check_generation(asked, model)
    if not body.label_token_ids:
        raise InvalidRequest("label_token_ids is empty; it needs at least one token id.", parameter="label_token_ids")
    check_token_ids("label_token_ids", body.label_token_ids, model.vocab_size)
    check_choices(len(body.items), 1, context.options.max_choices_per_request)
    prompts = await _prompts(request, body, model)
    generation = make_generation_request(
        asked, prompts, model, max_tokens=1, logprobs=0, prompt_logprobs=None, caller=caller_of(request, asked),
        options=context.options,
    )  # fmt: skip
    # Use the model's own probabilities, regardless of its generation config and --logprobs-mode.
    sampling = msgspec.structs.replace(generation.sampling, processed_logprobs=True, logit_bias=())
    state = await context.pipeline.start(replace(generation, sampling=sampling, wants_text=False))
    choices = await collect(state, len(prompts), request.receive)
    data = [Score(index, _score(body, choice)) for index, choice in enumerate(choices)]
    usage = Usage(state.prompt_tokens, state.prompt_tokens + len(choices), len(choices))
    return await large.answer(
        request, len(data),
        lambda: ScoreResponse(
            f"generative-scoring-{generation.request_id}", now(), generation.answering_model, data, usage
        ),
    )  # fmt: skip


def _completion(body: GenerativeScoringRequest) -> CompletionRequest:
    """Builds the model request. Sampling is neutral and has no seed: the sampled token is ignored."""
    return CompletionRequest(
        prompt="", model=body.model, max_tokens=1, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, logprobs=0,
        repetition_penalty=1.0, min_tokens=0, presence_penalty=0.0, frequency_penalty=0.0, ignore_eos=True,
        logprob_token_ids=list(dict.fromkeys(body.label_token_ids)), cache_salt=body.cache_salt,
        priority=body.priority, request_id=body.request_id or current_request_id(), user=body.user,
    )  # fmt: skip


async def _prompts(request: Request, body: GenerativeScoringRequest, model: ServedModel) -> list[TokenizedPrompt]:
    """Joins the tokens of query and items. Each text is tokenized by itself, so that all prompts share the query's."""
    context = context_of(request)
    query, items = await asyncio.gather(
        _token_ids(context, [body.query], "query", body.add_special_tokens, model),
        _token_ids(context, body.items, "items", False, model),
    )
    return await beside(request, _joined, query[0], items, body.item_first, model.vocab_size)


async def _token_ids(
    context: GatewayContext, given: Sequence[str | list[int]], name: str, add_special_tokens: bool, model: ServedModel
) -> list[Sequence[int]]:
    """Returns token ids as they are, and those of texts.

    Raises:
        InvalidRequest: there are texts, and no tokenizer.
        ContextTooLong: a text does not fit the model.
    """
    texts = [each for each in given if isinstance(each, str)]
    if texts:
        context.require_tokenizer("A text", name)
    encoded = iter(await context.tokenizer.encode(texts, add_special_tokens, max_tokens=model.max_model_len))
    return [next(encoded).token_ids if isinstance(each, str) else each for each in given]


def _joined(
    query: Sequence[int], items: Sequence[Sequence[int]], item_first: bool, vocab_size: int
) -> list[TokenizedPrompt]:
    prompts = [TokenizedPrompt((*item, *query) if item_first else (*query, *item)) for item in items]
    for prompt in prompts:
        check_token_ids("items", prompt.token_ids, vocab_size)
    return prompts


def _score(body: GenerativeScoringRequest, choice: CollectedChoice) -> float:
    """Probability of the first label, among the labels alone or among all tokens."""
    score = choice.scores[0]
    logprobs = dict(zip(score.token_ids[1:], score.logprobs[1:], strict=True))
    first = logprobs[body.label_token_ids[0]]
    return math.exp(first - _log_sum(list(logprobs.values()))) if body.apply_softmax else math.exp(first)


def _log_sum(logprobs: Sequence[float]) -> float:
    """Returns log(sum(exp(logprobs)))."""
    largest = max(logprobs)
    return largest + math.log(sum(math.exp(logprob - largest) for logprob in logprobs))
