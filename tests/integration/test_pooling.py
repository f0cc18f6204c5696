"""Whole stacks that serve pooling models match sentence-transformers, through OpenAI's client and other paths."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import openai
import pytest
import torch

from quire.batch import run
from quire.options.batch import BatchOptions
from quire.options.gateway import GatewayOptions
from tests.support.engine_process import free_port
from tests.support.minilm import make_cross_encoder, minilm_folder
from tests.support.stack import Stack, quire, start_stack, stop_stack
from tests.support.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

pytestmark = pytest.mark.slow

QUERY = "How fast is the fox?"
TEXTS = [
    "The quick brown fox jumps over the lazy dog.", "hi", "", "Grüße aus Köln, 你好", "word " * 120,
    "A fox can run at 50 kilometres an hour, which is faster than most dogs.",
]  # fmt: skip


def running(folder: Path, log: Path, *arguments: str) -> Iterator[Stack]:
    stack = start_stack(folder, log, "--served-model-name", "pooled", "--dtype", "float32", *arguments)
    try:
        stack.wait_healthy()
        yield stack
    finally:
        code = stop_stack(stack)
    assert code == 0, stack.log.read_text()


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with two engines."""
    yield from running(minilm_folder(), tmp_path_factory.mktemp("minilm") / "log", "--engines", "2")


@pytest.fixture(scope="module")
def admin() -> Iterator[httpx.Client]:
    """A client of the cross-encoder's admin port, a port that stays free until that stack is started."""
    with httpx.Client(base_url=f"http://127.0.0.1:{free_port()}", timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def cross_encoder(admin: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("models")
    yield from running(
        make_cross_encoder(folder / "cross"), folder / "log", "--enable-sleep-mode", "--admin-port",
        str(admin.base_url.port), "--profiler-config.torch_profiler_dir", str(folder / "traces"),
    )  # fmt: skip


def post(stack: Stack, path: str, body: dict[str, Any]) -> Any:
    response = httpx.post(f"{stack.url}{path}", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.fixture(scope="module")
def reference() -> SentenceTransformer:
    # Imported here, because it takes seconds, and every process that collects tests would pay for it.
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm_folder()), device="cpu")


def test_embeddings_are_those_of_sentence_transformers(minilm: Stack, reference: SentenceTransformer) -> None:
    """Several texts in one request and each alone; in base64, as OpenAI's client asks for, and as numbers."""
    client = openai.OpenAI(base_url=f"{minilm.url}/v1", api_key="unused")
    expected = reference.encode(TEXTS)
    answer = client.embeddings.create(model="pooled", input=TEXTS)
    found = np.array([each.embedding for each in answer.data])
    assert np.abs(found - expected).max() < 1e-5
    assert answer.usage.prompt_tokens == sum(len(reference.tokenizer(text).input_ids) for text in TEXTS)
    for text, vector in zip(TEXTS, expected, strict=True):
        alone = client.embeddings.create(model="pooled", input=text, encoding_format="float")
        assert np.array(alone.data[0].embedding) @ vector > 1 - 1e-5
    longer = "The fox is quick. " * 200  # longer than the model allows; sentence-transformers truncates
    with pytest.raises(openai.BadRequestError, match="maximum context length is 256 tokens"):
        client.embeddings.create(model="pooled", input=longer)
    cut = client.embeddings.create(model="pooled", input=longer, extra_body={"truncate_prompt_tokens": -1})
    assert np.array(cut.data[0].embedding) @ reference.encode(longer) > 1 - 1e-5


def test_a_large_request_is_shared_by_the_engines(minilm: Stack, reference: SentenceTransformer) -> None:
    texts = [f"{number} {TEXTS[number % 2]} {TEXTS[5]}" for number in range(200)]  # more tokens than go into one part
    answer = post(minilm, "/v1/embeddings", {"model": "pooled", "input": texts})
    found = np.array([each["embedding"] for each in answer["data"]])
    some = range(0, 200, 20)
    assert np.abs(found[some] - reference.encode([texts[index] for index in some])).max() < 1e-5
    fleet = httpx.get(f"{minilm.url}/fleet", timeout=WAIT_SECONDS).json()
    assert len(fleet["workers"]) == 2


def test_scores_and_rankings_are_angles(minilm: Stack, reference: SentenceTransformer) -> None:
    expected = reference.similarity(reference.encode([QUERY]), reference.encode(TEXTS))[0].tolist()
    scored = post(minilm, "/score", {"model": "pooled", "text_1": QUERY, "text_2": TEXTS})
    assert [each["score"] for each in scored["data"]] == pytest.approx(expected, abs=1e-5)
    ranked = post(minilm, "/v1/rerank", {"model": "pooled", "query": QUERY, "documents": TEXTS, "top_n": 2})
    assert ranked["results"][0]["document"]["text"] == TEXTS[5]
    assert ranked["results"][0]["relevance_score"] == pytest.approx(max(expected), abs=1e-5)


@pytest.mark.parametrize("field", ["max_tokens_per_query", "max_tokens_per_doc"])
def test_a_text_is_not_cut_to_its_special_tokens(minilm: Stack, field: str) -> None:
    body = {"model": "pooled", "query": QUERY, "documents": TEXTS, field: 2}
    error = httpx.post(f"{minilm.url}/rerank", json=body, timeout=60).json()["error"]
    assert (error["code"], error["param"]) == (400, field)
    assert error["message"].startswith(f"{field} is 2")


def test_a_cross_encoder_scores_as_sentence_transformers_has_it(cross_encoder: Stack) -> None:
    from sentence_transformers import CrossEncoder

    reference = CrossEncoder(str(cross_encoder.model), device="cpu", max_length=512)
    pairs = [(QUERY, text) for text in TEXTS]
    expected = reference.predict(pairs).tolist()
    assert max(expected) - min(expected) > 0.01
    scored = post(cross_encoder, "/score", {"model": "pooled", "text_1": QUERY, "text_2": TEXTS})
    assert [each["score"] for each in scored["data"]] == pytest.approx(expected, abs=1e-4)
    logits = reference.predict(pairs, activation_fn=torch.nn.Identity()).tolist()
    raw = post(
        cross_encoder, "/rerank", {"model": "pooled", "query": QUERY, "documents": TEXTS, "use_activation": False}
    )
    assert [each["relevance_score"] for each in raw["results"]] == pytest.approx(sorted(logits)[::-1], abs=1e-3)
    short = CrossEncoder(str(cross_encoder.model), device="cpu", max_length=20).predict(pairs).tolist()
    cut = {"model": "pooled", "text_1": QUERY, "text_2": TEXTS, "truncate_prompt_tokens": 20}
    scored = post(cross_encoder, "/score", cut)
    assert [each["score"] for each in scored["data"]] == pytest.approx(short, abs=1e-4)


def test_the_same_scores_after_a_sleep_and_profiled(cross_encoder: Stack, admin: httpx.Client) -> None:
    body = {"model": "pooled", "text_1": QUERY, "text_2": TEXTS}
    before = post(cross_encoder, "/score", body)["data"]
    for level in (1, 2):
        admin.post("/sleep", params={"level": level}).raise_for_status()
        assert httpx.get(f"{cross_encoder.url}/health").status_code == 503
        admin.post("/wake_up").raise_for_status()
        assert post(cross_encoder, "/score", body)["data"] == before
    admin.post("/start_profile").raise_for_status()
    post(cross_encoder, "/score", body)
    (worker,) = admin.post("/stop_profile").raise_for_status().json()["workers"]
    assert [Path(file).exists() for file in worker["files"]] == [True]


def test_what_generates_is_refused(minilm: Stack) -> None:
    client = openai.OpenAI(base_url=f"{minilm.url}/v1", api_key="unused")
    with pytest.raises(openai.BadRequestError, match="--runner pooling"):
        client.chat.completions.create(model="pooled", messages=[{"role": "user", "content": "hi"}])
    assert [model.id for model in client.models.list()] == ["pooled"]


@pytest.mark.parametrize("backend", ["openai-embeddings", "vllm-rerank"])
def test_it_can_be_measured(minilm: Stack, backend: str) -> None:
    command = quire(
        "bench", "serve", "--base-url", minilm.url, "--backend", backend, "--num-prompts", "20", "--max-concurrency",
        "4", "--random-input-len", "20", "--disable-tqdm",
    )  # fmt: skip
    done = subprocess.run(command, text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Successful requests:                     20" in done.stdout


def test_batches_of_files(
    minilm: Stack, tmp_path: Path, reference: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answered by the running stack instead of one of their own, which tests/integration/test_run_batch.py has."""
    monkeypatch.setattr(run, "run_stack", lambda work, **groups: asyncio.run(work()) is None)
    monkeypatch.setattr(run, "api_url", lambda gateway: minilm.url)
    requests = [
        ("/v1/embeddings", {"input": TEXTS[0]}), ("/score", {"text_1": QUERY, "text_2": TEXTS[5]}),
        ("/v1/rerank", {"query": QUERY, "documents": TEXTS[:2]}),
    ]  # fmt: skip
    lines = [
        json.dumps({"custom_id": f"{number}", "method": "POST", "url": url, "body": {"model": "pooled", **body}})
        for number, (url, body) in enumerate(requests)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    run.main(BatchOptions(str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")), gateway=GatewayOptions())
    answers = [json.loads(line)["response"]["body"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert np.array(answers[0]["data"][0]["embedding"]) @ reference.encode(TEXTS[0]) > 1 - 1e-5
    expected = float(reference.encode(QUERY) @ reference.encode(TEXTS[5]))
    assert answers[1]["data"][0]["score"] == pytest.approx(expected, abs=1e-5)
    assert [result["index"] for result in answers[2]["results"]] == [0, 1]
