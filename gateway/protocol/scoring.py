"""`/score`, `/rerank` and `/generative_scoring`."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from gateway.protocol.common import Usage
from gateway.protocol.fields import Flag, RequestFields, Whole
from gateway.protocol.pooling import CohereMeta, PoolingFields


class ScoreInput(msgspec.Struct):
    """What is compared: a text, or the parts of a message's content, which may be images, videos and audio."""

    text: str | None = None
    content: list[dict[str, Any]] | None = None


Compared = str | ScoreInput | list[str | ScoreInput]


class ScoringFields(PoolingFields, kw_only=True):
    """Fields of requests that compare texts or contents."""

    max_tokens_per_query: int | None = None  # 0 for all
    max_tokens_per_doc: int | None = None
    instruction: str | None = None  # for models whose score template has a place for it


class ScoreRequest(ScoringFields, kw_only=True):
    """Pairs to score: one text or content with each of several, or pairwise. The field names are alternatives."""

    text_1: Compared | None = None
    text_2: Compared | None = None
    data_1: Compared | None = None
    data_2: Compared | None = None
    queries: Compared | None = None
    documents: Compared | None = None
    items: Compared | None = None


class Score(msgspec.Struct):
    """Score of one pair."""

    index: int
    score: float
    object: str = "score"


class ScoreResponse(msgspec.Struct):
    """The scores of all pairs."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: Usage
    object: str = "list"


class RerankDocument(msgspec.Struct):
    """A document of an answer: its text, or the parts of its content."""

    text: str | UnsetType = UNSET
    multi_modal: list[dict[str, Any]] | UnsetType = UNSET


class RerankRequest(ScoringFields, kw_only=True):
    """Documents to rank by how well they answer a query."""

    query: str | ScoreInput
    documents: list[str | ScoreInput]
    top_n: int | None = None  # 0 for all
    return_documents: Flag = True


class RerankUsage(msgspec.Struct):
    """Token counts of a request."""

    prompt_tokens: int
    total_tokens: int


class RerankResult(msgspec.Struct):
    """One document, with its index in the request and its score."""

    index: int
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET


class RerankResponse(msgspec.Struct):
    """The ranked documents, best first."""

    id: str
    model: str
    usage: RerankUsage
    results: list[RerankResult]
    meta: CohereMeta  # the same usage, for Cohere's clients


class GenerativeScoringRequest(RequestFields, kw_only=True):
    """Scores items by the probability that a generative model continues query and item with the first label token."""

    model: str | None = None
    query: str | list[int]
    items: list[str | list[int]]
    label_token_ids: list[int]
    apply_softmax: Flag = True
    item_first: Flag = False
    add_special_tokens: Flag = True
    cache_salt: str | None = None
    priority: Whole = 0
    request_id: str | None = None
    user: str | None = None
