"""`quire bench serve` against a server over sockets: what it requests, prints and writes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from quire.cli import cli
from tests.quire.bench.conftest import Server
from tests.support.engine_process import free_port

Bench = Callable[..., Result]
# All keys of vLLM's result files for text models.
KEYS = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
    "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
    "max_concurrent_requests", "mean_ttft_ms", "median_ttft_ms", "std_ttft_ms", "p99_ttft_ms", "mean_tpot_ms",
    "median_tpot_ms", "std_tpot_ms", "p99_tpot_ms", "mean_itl_ms", "median_itl_ms", "std_itl_ms", "p99_itl_ms",
}  # fmt: skip
DETAILS = {
    "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "generated_texts",
    "errors",
}  # fmt: skip


@pytest.fixture
def bench(server: Server) -> Bench:
    def run(*arguments: str) -> Result:
        words = ["bench", "serve", "--base-url", server.url, "--num-prompts", "4", "--random-input-len", "12",
                 "--random-output-len", "3", *arguments]  # fmt: skip
        return CliRunner().invoke(cli, words, env={"OPENAI_API_KEY": "sesame"})

    return run


def test_the_table_is_vllms(bench: Bench) -> None:
    result = bench("--goodput", "ttft:60000", "tpot:60000", "--max-concurrency", "2", "--request-rate", "500")
    assert result.exit_code == 0, result.output
    labels = [line[:41].strip() for line in result.stdout.splitlines()]
    assert labels == [
        "============ Serving Benchmark Result ===", "Successful requests:", "Failed requests:",
        "Maximum request concurrency:", "Request rate configured (RPS):", "Benchmark duration (s):",
        "Total input tokens:", "Total generated tokens:", "Request throughput (req/s):", "Request goodput (req/s):",
        "Output token throughput (tok/s):", "Peak output token throughput (tok/s):", "Peak concurrent requests:",
        "Total token throughput (tok/s):",
        "---------------Time to First Token-------", "Mean TTFT (ms):", "Median TTFT (ms):", "P99 TTFT (ms):",
        "-----Time per Output Token (excl. 1st tok", "Mean TPOT (ms):", "Median TPOT (ms):", "P99 TPOT (ms):",
        "---------------Inter-token Latency-------", "Mean ITL (ms):", "Median ITL (ms):", "P99 ITL (ms):",
        "=========================================",
    ]  # fmt: skip
    figures = dict(zip(labels, (line[41:].strip() for line in result.stdout.splitlines()), strict=True))
    assert (figures["Successful requests:"], figures["Total input tokens:"]) == ("4", "48")
    assert figures["Total generated tokens:"] == "12"


def test_the_file_has_vllms_keys(bench: Bench, tmp_path: Path) -> None:
    result = bench("--save-result", "--result-dir", str(tmp_path / "new"), "--metadata", "tp=1", "note=a=b")
    (path,) = (tmp_path / "new").iterdir()
    assert path.name.startswith("openai-infqps-small-") and str(path) in result.stdout
    written = json.loads(path.read_text())
    assert written.keys() == KEYS | {"tp", "note"}
    assert (written["request_rate"], written["note"], written["max_concurrency"]) == ("inf", "a=b", None)


def test_details_label_and_another_line(bench: Bench, tmp_path: Path) -> None:
    for _ in range(2):
        bench("--save-detailed", "--append-result", "--result-dir", str(tmp_path), "--result-filename", "r.json",
              "--label", "mine", "--metric-percentiles", "50,99.5", "--percentile-metrics", "e2el")  # fmt: skip
    first, second = map(json.loads, (tmp_path / "r.json").read_text().splitlines())
    assert first.keys() == second.keys() >= DETAILS | {"p50_e2el_ms", "p99.5_e2el_ms"}
    assert first["label"] == "mine" and first["input_lens"] == [12] * 4 and first["generated_texts"] == ["xxx"] * 4
    assert all(len(times) == 2 for times in first["itls"])


def test_the_plot_is_svg(bench: Bench, tmp_path: Path) -> None:
    target = tmp_path / "plots" / "times.svg"
    assert bench("--plot", str(target)).exit_code == 0
    drawn = ElementTree.fromstring(target.read_text())
    texts = [element.text or "" for element in drawn.iter() if element.tag.endswith("text")]
    assert "TTFT in ms, 4 requests" in texts and "TPOT in ms, 4 requests" in texts
    assert sum(text.startswith("p99 ") for text in texts) == 2


@pytest.mark.parametrize("kind", ["vllm", "llama"])
def test_servers_count_tokens_in_their_own_way(server: Server, bench: Bench, kind: str) -> None:
    server.kind = kind
    assert bench().exit_code == 0
    assert [len(body["prompt"]) for body in server.bodies()] == [12] * 4


def test_a_server_without_a_tokenizer_is_told_so(server: Server, bench: Bench) -> None:
    server.kind = "openai"
    result = bench()
    assert result.exit_code == 1 and "--tokenizer FOLDER" in result.stderr and server.bodies() == []


def test_a_model_that_the_server_does_not_have_is_named(server: Server, bench: Bench) -> None:
    server.missing = "nope"
    result = bench("--model", "nope")
    assert result.exit_code == 1 and "/tokenize" not in result.stderr
    assert "refuses the model 'nope' (--model, --served-model-name): The model does not exist. Served" in result.stderr


def test_a_server_that_stops_counting_is_told(server: Server, bench: Bench) -> None:
    server.tokenized = 5
    result = bench()
    assert result.exit_code == 1 and "/tokenize has stopped answering" in result.stderr


def test_what_is_asked(server: Server, bench: Bench) -> None:
    result = bench(
        "--temperature", "0", "--top-k", "5", "--ignore-eos", "--extra-body", '{"user": "me"}', "--header", "x-a=1",
        "x-b=2", "--request-id-prefix", "r-", "--seed", "3",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    headers = [headers for path, headers, _ in server.seen if path == "/v1/completions"]
    assert sorted(header["x-request-id"] for header in headers) == ["r-0", "r-1", "r-2", "r-3"]
    assert {(h["authorization"], h["x-a"], h["x-b"]) for h in headers} == {("Bearer sesame", "1", "2")}
    body: dict[str, Any] = server.bodies()[0]
    assert len(body.pop("prompt")) == 12
    assert body == {
        "model": "small", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3,
        "temperature": 0, "top_k": 5, "ignore_eos": True, "user": "me",
    }  # fmt: skip


def test_a_chat(server: Server, bench: Bench) -> None:
    assert bench("--backend", "openai-chat", "--served-model-name", "other", "--logprobs", "2").exit_code == 0
    assert {path for path, _, _ in server.seen} >= {"/v1/chat/completions"}
    body = server.bodies()[0]
    assert len(body.pop("messages")[0]["content"]) == 12
    assert body == {
        "model": "other", "stream": True, "stream_options": {"include_usage": True}, "max_completion_tokens": 3,
        "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip


def test_adapters_in_turn(server: Server, bench: Bench) -> None:
    assert bench("--lora-modules", "one", "two", "--lora-assignment", "round-robin").exit_code == 0
    assert sorted(body["model"] for body in server.bodies()) == ["one", "one", "two", "two"]


def test_failures_are_counted_and_shown(server: Server, bench: Bench) -> None:
    server.failures = 1
    result = bench()
    assert result.exit_code == 0 and "1 failed: 503: " in result.stderr and "busy" in result.stderr
    server.failures = 9
    assert bench().exit_code == 1


def test_it_waits_until_the_server_is_ready(server: Server, bench: Bench) -> None:
    server.failures = 1
    result = bench("--ready-check-timeout-sec", "20", "--num-warmups", "2")
    assert result.exit_code == 0 and "failed" not in result.stderr
    assert len(server.bodies()) == 1 + 1 + 2 + 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset-name", "hf"], "'hf' is not one of 'random'"),
        (["--backend", "tgi"], "SGLang, llama.cpp and TGI offer the first two APIs"),
        (["--base-url", "localhost:8000"], "expected an address such as http://"),
        (["--base-url", "http://[bad"], "--base-url http://[bad: expected an address such as http://"),
        (["--base-url", "http://host:port"], "expected an address such as http://"),
        (["--metadata", "tp"], "expected KEY=VALUE"),
        (["--header", "x"], "expected NAME=VALUE"),
        (["--tokenizer", "/no/such/folder"], "/no/such/folder"),
        (["--plot", "/proc/no.svg"], "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_told(bench: Bench, arguments: list[str], words: str) -> None:
    result = bench(*arguments)
    assert result.exit_code != 0 and words in " ".join(result.output.split())


def test_no_server_there() -> None:
    result = CliRunner().invoke(cli, ["bench", "serve", "--port", str(free_port())])
    assert result.exit_code == 1 and "No server answers at" in result.stderr and "quire serve" in result.stderr


def test_help_by_word() -> None:
    result = CliRunner().invoke(cli, ["bench", "serve", "--help=ramp-up-end"])
    assert "--ramp-up-end-rps" in result.stdout and "--goodput" not in result.stdout


@pytest.mark.parametrize(
    ("backend", "path", "fields"),
    [
        ("openai-embeddings", "/v1/embeddings", {"input", "encoding_format"}),
        ("openai-embeddings-chat", "/v1/embeddings", {"messages", "encoding_format"}),
        ("vllm-pooling", "/pooling", {"input", "encoding_format"}),
        ("vllm-rerank", "/v1/rerank", {"query", "documents"}),
    ],
)  # fmt: skip
def test_pooling_models_are_asked_for_whole_answers(
    bench: Bench, server: Server, backend: str, path: str, fields: set[str]
) -> None:
    result = bench("--backend", backend, "--temperature", "0")
    assert result.exit_code == 0, result.output
    asked = [body for seen, _, body in server.seen if seen == path]
    assert len(asked) == 4
    assert all(set(body) == {"model", *fields} for body in asked)
    figures = {line[:41].strip(): line[41:].strip() for line in result.stdout.splitlines()}
    assert (figures["Successful requests:"], figures["Total input tokens:"]) == ("4", "20")
    assert figures["Total generated tokens:"] == "0"
    assert "Mean E2EL (ms):" in figures
    assert "Mean TTFT (ms):" not in figures
