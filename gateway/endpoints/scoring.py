"""`POST /score` and `/rerank`: how well texts match each other, or contents with images, videos and audio.

A cross-encoder reads both texts of a pair together. With other models, each text is embedded once, and the vectors are
compared: by cosine similarity, or token by token with late-interaction models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.pooled import Pooled
from gateway.endpoints import large
from gateway.endpoints.body import read_json
from gateway.endpoints.pooled import PoolingCall, now, usage_of
from gateway.endpoints.pooled_inputs import rendered
from gateway.media.settings import check_no_media_settings
from gateway.protocol.pooling import CohereBilledUnits, CohereMeta
from gateway.protocol.scoring import (
    Compared,
    RerankDocument,
    RerankRequest,
    RerankResponse,
    RerankResult,
    RerankUsage,
    Score,
    ScoreInput,
    ScoreRequest,
    ScoreResponse,
    ScoringFields,
)
from gateway.requests.field_names import told_as
from gateway.requests.messages import PlacedPart, media_kinds, texts_of
from gateway.requests.pooling_request import TokenizedInput, Truncation
from gateway.requests.template_variables import template_variables
from gateway.services.tokenizer import ConversationForm
from quire.errors import InvalidRequest
from quire.retrievers import DOCUMENT_FIRST

_NAMES = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))
_TRUNCATION = "truncate_prompt_tokens"
_QUERY, _DOCUMENT = ("query",), ("document", "passage", "corpus")

Side = str | list[PlacedPart]  # a text, or a content's parts, of which some are images, videos or audio


@dataclass(frozen=True)
class Pairs:
    """What is compared: one with each of several, or pairwise."""

    firsts: Sequence[Side]
    seconds: Sequence[Side]
    parameter: str  # field that the seconds came from
    have_roles: bool  # a query and documents, for which a model may have prompts

    def __post_init__(self) -> None:
        if len(self.firsts) not in (1, len(self.seconds)):
            raise InvalidRequest(
                f"{len(self.firsts)} texts cannot be paired with {len(self.seconds)}: send one first text, or as "
                "many first texts as second ones.",
                parameter=self.parameter,
            )

    @property
    def have_media(self) -> bool:
        """Whether there are images, videos or audio."""
        return not all(isinstance(side, str) for side in (*self.firsts, *self.seconds))


@dataclass(frozen=True)
class Scored:
    """Scores of the pairs, and the number of tokens used."""

    scores: Sequence[float]
    num_tokens: int


async def score(request: Request) -> Response:
    """Scores how well texts match."""
    return await scored(request, await read_json(request, ScoreRequest))


async def scored(request: Request, body: ScoreRequest) -> Response:
    """Scores the pairs of a body."""
    call = PoolingCall.of(request, body)
    found = await _scores(call, body, _pairs_of(body))
    usage = usage_of([Pooled(b"", (), found.num_tokens)])
    data = [Score(index, value) for index, value in enumerate(found.scores)]
    return await large.answer(
        request, len(data), lambda: ScoreResponse(f"score-{call.request_id}", now(), call.model_name, data, usage)
    )


def _pairs_of(body: ScoreRequest) -> Pairs:
    for first, second in _NAMES:
        if getattr(body, first) is not None and getattr(body, second) is not None:
            return Pairs(_sides(body, first), _sides(body, second), second, have_roles=False)
    raise InvalidRequest(
        "Send text_1 and text_2, or queries and documents.",
        parameter="text_1",
    )


def _sides(body: ScoringFields, name: str) -> list[Side]:
    """What a field has to compare.

    Raises:
        InvalidRequest: one is neither a text nor a content.
    """
    given: Compared = getattr(body, name)
    if not isinstance(given, list):
        return [_side(given, name, name)]
    return [_side(each, f"{name}[{index}]", name) for index, each in enumerate(given)]


def _side(given: str | ScoreInput, place: str, parameter: str) -> Side:
    if isinstance(given, str):
        return given
    if (given.text is None) == (given.content is None):
        raise InvalidRequest(f"{place} must have either text or content, a list of parts.", parameter=parameter)
    if given.content is None:
        return given.text or ""
    content = [PlacedPart(f"{place}.content[{index}]") for index in range(len(given.content))]
    for placed, part in zip(content, given.content, strict=True):
        placed.update(part)
    if media_kinds([{"content": content}]):
        return content
    with told_as({"messages": parameter}):
        return "\n".join(texts_of({"content": content}))


async def rerank(request: Request) -> Response:
    """Ranks documents by how well they answer a query."""
    return await reranked(request, await read_json(request, RerankRequest))


async def reranked(request: Request, body: RerankRequest) -> Response:
    """Ranks the documents of a body, best first."""
    call = PoolingCall.of(request, body)
    if (body.top_n or 0) < 0:
        raise InvalidRequest(f"top_n is {body.top_n}; it must be at least 0 (0 means all).", parameter="top_n")
    documents = _sides(body, "documents")
    found = await _scores(call, body, Pairs(_sides(body, "query"), documents, "documents", have_roles=True))
    order = sorted(range(len(documents)), key=lambda index: -found.scores[index])[: body.top_n or len(documents)]
    results = [RerankResult(index, found.scores[index]) for index in order]
    for result in results if body.return_documents else ():
        side = documents[result.index]
        own = RerankDocument(text=side) if isinstance(side, str) else RerankDocument(multi_modal=[*side])
        result.document = own
    usage = RerankUsage(found.num_tokens, found.num_tokens)
    meta = CohereMeta(CohereBilledUnits(found.num_tokens))
    identity = f"rerank-{call.request_id}"
    return await large.answer(
        request, len(results), lambda: RerankResponse(identity, call.model_name, usage, results, meta)
    )


async def _scores(call: PoolingCall, body: ScoringFields, pairs: Pairs) -> Scored:
    call.context.require_tokenizer("Scoring texts", pairs.parameter)
    call.check_inputs(len(pairs.seconds), pairs.parameter)
    for name in ("max_tokens_per_query", "max_tokens_per_doc"):
        if (getattr(body, name) or 0) < 0:
            raise InvalidRequest(
                f"{name} is {getattr(body, name)}; it must be at least 0 (0 means all).", parameter=name
            )
    if pairs.have_media and (body.max_tokens_per_query or body.max_tokens_per_doc):
        raise InvalidRequest(
            "max_tokens_per_query and max_tokens_per_doc cut texts, but the request has images, videos or audio: leave "
            "them out.",
            parameter="max_tokens_per_doc" if body.max_tokens_per_doc else "max_tokens_per_query",
        )
    if not pairs.have_media:
        check_no_media_settings(body)
    if call.info.is_cross_encoder:
        return await _cross_encoded(call, body, pairs)
    if body.instruction is not None or body.chat_template is not None:
        raise InvalidRequest(
            f"The model {call.model.main_name!r} compares vectors of single texts and has no template for pairs: "
            "leave instruction and chat_template out.",
            parameter="instruction" if body.instruction is not None else "chat_template",
        )
    return await _compared(call, body, pairs)


async def _cross_encoded(call: PoolingCall, body: ScoringFields, pairs: Pairs) -> Scored:
    """Scores pairs with a model that reads both of one together."""
    from gateway.answers import vectors  # late: it needs numpy, a third of a gateway's start

    if call.info.num_labels != 1:
        raise InvalidRequest(
            f"The model {call.model.main_name!r} has {call.info.num_labels} classes, but scores need a model with "
            "one: use /classify.",
            parameter="model",
        )
    told = {} if body.instruction is None else {"instruction": body.instruction}
    inputs = await (_with_media(call, pairs, told) if pairs.have_media else _of_texts(call, body, pairs, told))
    if not (pairs.have_media or call.info.has_token_types):
        inputs = [TokenizedInput(each.token_ids) for each in inputs]
    outputs = await call.run(inputs, "classify")
    return Scored(
        [float(vectors.rows_of(output)[0]) for output in outputs], sum(output.num_tokens for output in outputs)
    )


async def _of_texts(
    call: PoolingCall, body: ScoringFields, pairs: Pairs, told: Mapping[str, str]
) -> list[TokenizedInput]:
    """Tokenizes pairs of texts."""
    return await call.context.tokenizer.encode_pairs(
        _only_texts(pairs.firsts), _only_texts(pairs.seconds), call.model.max_model_len, call.truncation,
        max_first_tokens=body.max_tokens_per_query or 0, max_second_tokens=body.max_tokens_per_doc or 0,
        template=body.chat_template, kwargs={**template_variables(body.chat_template_kwargs, None, None), **told},
    )  # fmt: skip


async def _with_media(call: PoolingCall, pairs: Pairs, told: Mapping[str, str]) -> list[TokenizedInput]:
    """Renders pairs by the score template."""
    system = [{"role": "system", "content": text} for text in told.values()]
    step = -1 if call.model.architecture in DOCUMENT_FIRST else 1  # images are in the order of their places
    conversations: list[list[Mapping[str, Any]]] = []
    for index, second in enumerate(pairs.seconds):
        query = {"role": "query", "content": pairs.firsts[index if len(pairs.firsts) > 1 else 0]}
        conversations.append([*system, *[query, {"role": "document", "content": second}][::step]])
    with told_as({"messages": pairs.parameter}):
        return await rendered(call, conversations, ConversationForm.PAIR, variables=told, add_generation_prompt=True)


def _only_texts(sides: Sequence[Side]) -> list[str]:
    return [side for side in sides if isinstance(side, str)]


async def _compared(call: PoolingCall, body: ScoringFields, pairs: Pairs) -> Scored:
    """Scores pairs by comparing vectors of each text or content."""
    from gateway.answers import vectors  # late: it needs numpy, a third of a gateway's start

    by_token = call.info.is_late_interaction
    task = "token_embed" if by_token else "embed"
    call.require(task)
    before_first, before_second = ("", "")
    if by_token or pairs.have_roles:
        before_first, before_second = _prompt(call, _QUERY), _prompt(call, _DOCUMENT)
    with told_as({"messages": pairs.parameter}):
        first = await _alone(call, pairs.firsts, before_first, body, "max_tokens_per_query")
        second = await _alone(call, pairs.seconds, before_second, body, "max_tokens_per_doc")
    outputs = await call.run([*first, *second], task, use_activation=None)
    queries, documents = outputs[: len(first)], outputs[len(first) :]

    def compare() -> list[float]:
        compared = vectors.max_similarity if by_token else vectors.cosine
        return [
            compared(queries[index if len(queries) > 1 else 0], document) for index, document in enumerate(documents)
        ]

    many = by_token or len(documents) > large.LARGE_ANSWER
    scores = await call.context.large_requests.run(compare) if many else compare()
    return Scored(scores, sum(output.num_tokens for output in outputs))


def _prompt(call: PoolingCall, names: Sequence[str]) -> str:
    """Returns the model's prompt to prepend to a text of a role."""
    return next((call.info.prompts[name] for name in names if name in call.info.prompts), "")


async def _alone(
    call: PoolingCall, sides: Sequence[Side], prompt: str, body: ScoringFields, limit: str
) -> list[TokenizedInput]:
    """Tokenizes texts and contents, each of which is an input.

    Args:
        prompt: what stands before texts.
        limit: the body's field that says how many tokens of a text are kept.
    """
    contents: list[list[Mapping[str, Any]]]
    contents = [[{"role": "user", "content": side}] for side in sides if not isinstance(side, str)]
    with told_as({_TRUNCATION: limit}):
        texts = iter(await _texts(call, [prompt + text for text in _only_texts(sides)], getattr(body, limit)))
    others = iter(await rendered(call, contents, ConversationForm.CONTENTS, add_special_tokens=True))
    return [next(texts) if isinstance(side, str) else next(others) for side in sides]


async def _texts(call: PoolingCall, texts: Sequence[str], most: int | None) -> list[TokenizedInput]:
    """
    Args:
        most: maximum tokens to keep of each text; None or 0 means all.
    """
    limit = call.truncation
    if most:
        limit = Truncation(most) if limit is None else replace(limit, num_tokens=min(most, limit.num_tokens))
    return await call.texts(texts, truncation=limit)
