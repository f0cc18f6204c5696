"""A whole stack that serves a vision-language model for pooling returns what Transformers computes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.support.stack import Stack, start_stack, stop_stack
from tests.support.vision_models import make_vision_model, png_bytes, random_image
from tests.support.vision_models.reference import reference_hidden

pytestmark = pytest.mark.slow

IMAGES = [random_image(60, 40, 1), random_image(30, 70, 2)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    model = make_vision_model(tmp_path_factory.mktemp("models"), "qwen3_vl")
    running = start_stack(
        model, tmp_path_factory.mktemp("stack") / "log", "--dtype", "float32", "--served-model-name", "seer",
        "--runner", "pooling",
    )  # fmt: skip
    try:
        running.wait_healthy()
        yield running
    finally:
        code = stop_stack(running)
    assert code == 0, running.log.read_text()


def part(number: int) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(png_bytes(IMAGES[number])).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def post(stack: Stack, path: str, **body: Any) -> Any:
    response = httpx.post(f"{stack.url}{path}", json={"model": "seer", **body}, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def test_vectors_and_scores(stack: Stack) -> None:
    text = {"type": "text", "text": "Represent this."}
    known = [
        [{"role": "user", "content": [{"type": "image"}, text]}], [{"role": "user", "content": [text]}],
    ]  # fmt: skip
    asked = [[{"role": "user", "content": [part(number), text]}] for number in range(2)]
    assert stack.model
    hidden = [reference_hidden(stack.model, known[0], [image])[0] for image in IMAGES]
    hidden.append(reference_hidden(stack.model, known[1], [])[0])
    conversations = [*asked, known[1]]
    expected = torch.stack([torch.nn.functional.normalize(each[-1], dim=0) for each in hidden]).numpy()
    prompted = {"messages": conversations, "add_generation_prompt": True}
    answer = post(stack, "/v1/embeddings", **prompted)
    assert np.abs(np.array([each["embedding"] for each in answer["data"]]) - expected).max() < 1e-5
    assert answer["usage"]["prompt_tokens"] == sum(map(len, hidden))
    tokens = post(stack, "/pooling", task="token_embed", use_activation=False, **prompted)["data"]
    for found, own in zip(tokens, hidden, strict=True):
        assert np.abs(np.array(found["data"]) - own.numpy()).max() < 1e-3
    scores = post(stack, "/score", text_1="A picture", text_2=[{"content": [part(0)]}, {"content": [part(1)]}])["data"]
    ranked = post(stack, "/rerank", query="A picture", documents=[{"content": [part(0)]}, {"content": [part(1)]}])
    found = {each["index"]: each["relevance_score"] for each in ranked["results"]}
    assert [found[0], found[1]] == pytest.approx([each["score"] for each in scores])
    assert found[0] != found[1]


def test_a_broken_image_is_refused(stack: Stack) -> None:
    url = f"data:image/png;base64,{base64.b64encode(b'no image').decode()}"
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    response = httpx.post(f"{stack.url}/v1/embeddings", json={"model": "seer", "messages": messages}, timeout=60)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
