"""The settings of a `quire bench serve` run."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from quire.bench.figures import METRICS, parse_metrics
from quire.bench.sample import Sample
from quire.errors import StartupError
from quire.options.bench import (
    GENERATING,
    POOLING,
    BenchResultOptions,
    BenchSamplingOptions,
    BenchServerOptions,
    BenchTrafficOptions,
)
from quire.options.dataset import DatasetOptions

_QUERY_WORDS = 16
_QUEUED = ("client_queue_time", "e2el_including_client_queue")


@dataclass(frozen=True)
class ServeBenchmark:
    """All options of a run, and what follows from them."""

    server: BenchServerOptions
    traffic: BenchTrafficOptions
    dataset: DatasetOptions
    sampling: BenchSamplingOptions
    result: BenchResultOptions

    @property
    def url(self) -> str:
        """Base URL of the server."""
        given = self.server.base_url or f"http://{_bracketed(self.server.host)}:{self.server.port}"
        return given.rstrip("/").removesuffix("/v1")

    @property
    def endpoint(self) -> str:
        return "/" + (self.server.endpoint or {**GENERATING, **POOLING}[self.server.backend]).lstrip("/")

    @property
    def answers_come_whole(self) -> bool:
        """Whether answers are not streamed, as those of pooling models."""
        return self.server.backend in POOLING

    @property
    def headers(self) -> dict[str, str]:
        """The headers of each request.

        Raises:
            StartupError: --header is not NAME=VALUE.
        """
        pairs = [item.partition("=") for item in self.server.header]
        for name, equals, value in pairs:
            if not equals or not name or any(sign in name + value for sign in "\r\n"):
                raise StartupError(f"--header {name}: expected NAME=VALUE.")
        key = {"authorization": f"Bearer {self.server.api_key}"} if self.server.api_key else {}
        return {**key, **{name.strip(): value.strip() for name, _, value in pairs}}

    @property
    def metrics(self) -> list[str]:
        """The metrics to report, in the order of the report.

        Raises:
            StartupError: a chosen metric does not exist.
        """
        chosen = parse_metrics(self.result.percentile_metrics)
        if self.answers_come_whole:  # there is no first token to time
            chosen = ["e2el", *(name for name in chosen if name in _QUEUED)]
        if self.traffic.max_concurrency is None:
            chosen = [name for name in chosen if name not in _QUEUED]
        return [name for name in METRICS if name in chosen]

    def body(self, model: str, sample: Sample) -> bytes:
        """The body of one request."""
        if self.answers_come_whole:
            return json.dumps({"model": model, **self._pooling_fields(sample), **self.server.extra_body}).encode()
        fields = {name: value for name, value in asdict(self.sampling).items() if value is not None}
        if not fields.pop("ignore_eos"):
            body: dict[str, Any] = {}
        else:
            body = {"ignore_eos": True}
        body |= {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        if self.endpoint.endswith("/chat/completions"):
            body |= {"messages": [{"role": "user", "content": sample.prompt}]}
            body |= {"max_completion_tokens": sample.output_tokens}
            if (count := fields.pop("logprobs", None)) is not None:
                body |= {"logprobs": True, "top_logprobs": count}
        else:
            body |= {"prompt": sample.prompt, "max_tokens": sample.output_tokens}
        return json.dumps({**body, **fields, **self.server.extra_body}).encode()

    def _pooling_fields(self, sample: Sample) -> dict[str, Any]:
        """The fields of a pooling request; embeddings are requested in base64, as OpenAI's clients do."""
        backend = self.server.backend
        if backend == "vllm-rerank":
            words = sample.prompt.split(" ")
            count = min(_QUERY_WORDS, len(words) // 2)
            return {"query": " ".join(words[:count]) or "?", "documents": [" ".join(words[count:])]}
        if backend == "openai-embeddings-chat":
            return {"messages": [{"role": "user", "content": sample.prompt}], "encoding_format": "base64"}
        return {"input": sample.prompt, "encoding_format": "base64"}

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS context for an https server."""
        if not self.url.startswith("https:"):
            return None
        context = ssl.create_default_context()
        if self.server.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def model_name(self, listed: Sequence[str]) -> str:
        """The model's name in requests.

        Args:
            listed: names that the server lists.

        Raises:
            StartupError: no name is known.
        """
        named, model = self.server.served_model_name, self.server.model
        if named or (model and (model in listed or not Path(model).exists())):
            return str(named or model)
        if not listed:
            raise StartupError(f"{self.url} lists no model: set --model or --served-model-name.")
        return listed[0]

    def asked_names(self, model: str, count: int) -> list[str]:
        """The name of the model or adapter for each request."""
        adapters = self.server.lora_modules or (model,)
        if self.server.lora_assignment == "round-robin":
            return [adapters[index % len(adapters)] for index in range(count)]
        return Random(self.traffic.seed).choices(adapters, k=count)  # noqa: S311  (no secrets)

    def setting(self, model: str, tokenizer: str, count: int) -> Mapping[str, Any]:
        """The settings that a result records."""
        traffic, backend = self.traffic, self.server.backend
        ramp_up = {
            "ramp_up_strategy": traffic.ramp_up_strategy,
            "ramp_up_start_rps": traffic.ramp_up_start_rps,
            "ramp_up_end_rps": traffic.ramp_up_end_rps,
        }
        return {
            "endpoint_type": backend, "backend": backend, "label": self.result.label or backend,
            "model_id": model, "tokenizer_id": tokenizer, "num_prompts": count,
            "request_rate": _finite(traffic.request_rate), "burstiness": _finite(traffic.burstiness),
            "max_concurrency": traffic.max_concurrency, **(ramp_up if traffic.ramp_up_strategy else {}),
        }  # fmt: skip


def _finite(number: float) -> float | str:
    """The number, or "inf", as JSON has no infinity."""
    return "inf" if number == float("inf") else number


def _bracketed(host: str) -> str:
    """The host as written in a URL."""
    return f"[{host}]" if ":" in host else host
