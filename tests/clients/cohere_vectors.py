"""`cohere`, both of its clients, against a pooling model: vectors in each of their forms, rankings, errors."""

from __future__ import annotations

import os

import cohere
import pytest

URL = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
TEXTS = ["A fox jumps over a dog.", "The stock market fell.", "Foxes are quick animals."]
MODEL = "minilm"


def vectors() -> None:
    client = cohere.ClientV2(api_key="unused", base_url=URL)
    answer = client.embed(
        model=MODEL, texts=TEXTS, input_type="search_document", embedding_types=["float", "binary", "ubinary"]
    )
    assert answer.embeddings.float_ is not None
    assert [len(vector) for vector in answer.embeddings.float_] == [384] * 3
    assert [len(vector) for vector in answer.embeddings.binary or ()] == [48] * 3
    signs = [number + 128 for number in (answer.embeddings.binary or [[]])[0]]
    assert signs == (answer.embeddings.ubinary or [[]])[0]
    assert (signs[0] >> 7) == (answer.embeddings.float_[0][0] > 0)
    assert answer.meta is not None
    assert answer.meta.billed_units is not None
    assert (answer.meta.billed_units.input_tokens or 0) > 10
    with pytest.raises(cohere.BadRequestError):
        client.embed(model=MODEL, texts=[], input_type="search_document")
    with pytest.raises(cohere.NotFoundError):
        client.embed(model="none", texts=TEXTS, input_type="search_document")


def rankings() -> None:
    for client in (cohere.ClientV2(api_key="unused", base_url=URL), cohere.Client(api_key="unused", base_url=URL)):
        answer = client.rerank(model=MODEL, query="What do foxes do?", documents=TEXTS, top_n=2)
        assert [result.index for result in answer.results] == [2, 0] or [r.index for r in answer.results] == [0, 2]
        assert answer.results[0].relevance_score >= answer.results[1].relevance_score


vectors()
rankings()
