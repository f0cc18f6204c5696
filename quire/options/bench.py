"""Options of `quire bench serve`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from quire.options.base import ANY_WORD, option

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# Backend → its endpoint. Pooling backends are not streamed: their answers are embeddings and scores.
GENERATING: Mapping[str, str] = MappingProxyType({"openai": COMPLETIONS, "vllm": COMPLETIONS, "openai-chat": CHAT})
POOLING: Mapping[str, str] = MappingProxyType(
    {
        "openai-embeddings": "/v1/embeddings", "openai-embeddings-chat": "/v1/embeddings", "vllm-pooling": "/pooling",
        "vllm-rerank": "/v1/rerank",
    }
)  # fmt: skip
_PAIR = r"[^-=\s][^=\s]*="


@dataclass(frozen=True)
class BenchServerOptions:
    """Server to benchmark."""

    group: ClassVar[str] = "BenchConfig"

    backend: str = option(
        "openai", f"API to use: openai and vllm use {COMPLETIONS}, openai-chat uses {CHAT}. For pooling models: "
        "openai-embeddings, openai-embeddings-chat, vllm-pooling, or vllm-rerank, which takes the first words of each "
        "prompt as the query and the rest as the document.",
        choices=(*GENERATING, *POOLING),
        others="SGLang, llama.cpp and TGI offer the first two APIs as well.",
    )  # fmt: skip
    base_url: str | None = option(
        None, "URL of the server, such as https://api.example.com, instead of --host and --port; unix:PATH for a "
        "server with --uds.", metavar="URL",
    )  # fmt: skip
    host: str = option("127.0.0.1", "Address of the server.")
    port: int = option(8000, "Port of the server.", minimum=1, maximum=65535)
    endpoint: str | None = option(None, "Path of the endpoint. Default: depends on the backend.", metavar="PATH")
    api_key: str | None = option(None, "API key of the server.", secret=True, variables=("OPENAI_API_KEY",))
    header: tuple[str, ...] = option(
        (), "Additional header for each request. Takes several; repeatable.", metavar="NAME=VALUE", following=_PAIR
    )
    insecure: bool = option(False, "Accepts any certificate of an https server.")
    model: str | None = option(
        None, "The model's name, or its folder on this machine. Default: the first model that the server lists.",
        metavar="PATH|NAME", positional=True,
    )  # fmt: skip
    served_model_name: str | None = option(
        None,
        "The model's name in requests. Default: --model, or the first model that the server lists if --model is "
        "a folder.",
    )
    tokenizer: str | None = option(
        None, "Folder of the tokenizer used to measure prompts, or its name on the Hugging Face hub. Default: that of "
        "--model if that is a folder, else the server's, through /tokenize and /detokenize.",
        metavar="PATH|NAME",
    )  # fmt: skip
    lora_modules: tuple[str, ...] = option(
        (), "Names of adapters that requests use instead of the model. Takes several.", following=ANY_WORD
    )
    lora_assignment: str = option(
        "random", "How a request's adapter is chosen: at random, or in turn.", choices=("random", "round-robin")
    )
    extra_body: dict[str, Any] = option({}, "Additional fields for each request, as JSON.")
    request_id_prefix: str = option("bench-", "Prefix of the x-request-id header; the request's number follows.")
    ready_check_timeout_sec: float = option(
        0.0, "Before the benchmark, retries the first request for up to this long until it succeeds; 0 turns this off.",
        minimum=0.0,
    )  # fmt: skip
    request_timeout_seconds: float = option(
        3600.0, "Maximum time for a request; after that, it has failed.", minimum=0.1
    )


@dataclass(frozen=True)
class BenchTrafficOptions:
    """Request rate."""

    group: ClassVar[str] = "BenchTrafficConfig"

    request_rate: float = option(
        math.inf, "Requests per second, at random intervals; inf sends all requests at once.", minimum=0.0001
    )
    burstiness: float = option(
        1.0, "Shape of the gamma distribution of the intervals: 1 is a Poisson process, lower values are burstier, "
        "higher values more even, inf gives equal intervals. Needs --request-rate.", minimum=0.0001,
    )  # fmt: skip
    max_concurrency: int | None = option(
        None, "Maximum number of concurrent requests; others wait inside the benchmark.", minimum=1
    )
    ramp_up_strategy: str | None = option(
        None, "How the rate grows during the benchmark, from --ramp-up-start-rps to --ramp-up-end-rps, instead of "
        "--request-rate.", choices=("linear", "exponential"),
    )  # fmt: skip
    ramp_up_start_rps: float | None = option(None, "Requests per second at the beginning.", minimum=0.0001)
    ramp_up_end_rps: float | None = option(None, "Requests per second at the end.", minimum=0.0001)
    num_warmups: int = option(0, "Warm-up requests before the benchmark, which are not counted.", minimum=0)
    seed: int = option(0, "Seed for everything random: prompts, lengths, intervals.")


@dataclass(frozen=True)
class BenchSamplingOptions:
    """Sampling parameters of the requests; those not set are not sent."""

    group: ClassVar[str] = "BenchSamplingConfig"

    temperature: float | None = option(None, "temperature.", minimum=0.0)
    top_p: float | None = option(None, "top_p.", minimum=0.0, maximum=1.0)
    top_k: int | None = option(None, "top_k.", minimum=-1)
    min_p: float | None = option(None, "min_p.", minimum=0.0, maximum=1.0)
    frequency_penalty: float | None = option(None, "frequency_penalty.", minimum=-2.0, maximum=2.0)
    presence_penalty: float | None = option(None, "presence_penalty.", minimum=-2.0, maximum=2.0)
    repetition_penalty: float | None = option(None, "repetition_penalty.", minimum=0.0)
    logprobs: int | None = option(
        None, "Number of alternatives per token whose log-probabilities are requested.", minimum=0
    )
    ignore_eos: bool = option(
        False,
        "Ignores the model's end-of-sequence token, so that every answer has its maximum length. Not supported "
        "by every server.",
    )


@dataclass(frozen=True)
class BenchResultOptions:
    """Results of a benchmark."""

    group: ClassVar[str] = "BenchResultConfig"

    percentile_metrics: str = option(
        "ttft,tpot,itl", "Metrics to report: time to first token (ttft), time per output token after the first (tpot), "
        "time between pieces of an answer (itl), time to the end (e2el) and, with --max-concurrency, the time that "
        "requests wait inside the benchmark (client_queue_time) and the sum of both (e2el_including_client_queue).",
        metavar="NAME,…",
    )  # fmt: skip
    metric_percentiles: str = option("99", "Percentiles to report of each metric.", metavar="NUMBER,…")
    goodput: tuple[str, ...] = option(
        (), "Upper limits in milliseconds on a request's ttft, tpot or e2el, such as ttft:500 tpot:50: counts the "
        "requests that meet all of them.", metavar="NAME:MS", following=r"[A-Za-z0-9_]+:",
    )  # fmt: skip
    label: str | None = option(None, "Prefix of the result's file name. Default: the backend.")
    save_result: bool = option(False, "Writes the result as JSON.")
    save_detailed: bool = option(False, "Also writes each request's times, lengths, text and error.")
    append_result: bool = option(False, "Appends the result to the file as a new line.")
    metadata: tuple[str, ...] = option(
        (), "Additional keys of the result, such as version=0.3.3. Takes several; repeatable.",
        metavar="KEY=VALUE", following=_PAIR,
    )  # fmt: skip
    result_dir: str | None = option(None, "Folder of the result file. Default: the current folder.", metavar="PATH")
    result_filename: str | None = option(
        None, "Name of the result file. Default: composed of label, rate, model and date.", metavar="NAME"
    )
    plot: str | None = option(
        None, "Plots the distributions of TTFT and TPOT as SVG; without a value, beside the result.", metavar="FILE",
        bare="auto",
    )  # fmt: skip
    disable_tqdm: bool = option(False, "Hides the progress bar.")
