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
    """Which server is measured, and how it is asked."""

    group: ClassVar[str] = "BenchConfig"

    backend: str = option(
        "openai", f"How it is asked: openai and vllm by {COMPLETIONS}, openai-chat by {CHAT}; pooling models by "
        "openai-embeddings, openai-embeddings-chat, vllm-pooling, or vllm-rerank, where a prompt's first words are the "
        "query and its rest the document.",
        choices=(*GENERATING, *POOLING),
        others="SGLang, llama.cpp and TGI have these two interfaces as well.",
    )  # fmt: skip
    base_url: str | None = option(
        None, "Address of the server, such as https://api.example.com, in place of --host and --port; unix:PATH is "
        "that of --uds.", metavar="URL",
    )  # fmt: skip
    host: str = option("127.0.0.1", "Address of the server.")
    port: int = option(8000, "Its port.", minimum=1, maximum=65535)
    endpoint: str | None = option(None, "Path of the endpoint. Default: the backend's.", metavar="PATH")
    api_key: str | None = option(None, "Key of the server.", secret=True, variables=("OPENAI_API_KEY",))
    header: tuple[str, ...] = option(
        (), "Further header of each request. Takes several, and is repeatable.", metavar="NAME=VALUE", following=_PAIR
    )
    insecure: bool = option(False, "Takes any certificate of an https server.")
    model: str | None = option(
        None, "Model: its name, or its folder on this machine. Default: the first that the server lists.",
        metavar="PATH|NAME", positional=True,
    )  # fmt: skip
    served_model_name: str | None = option(
        None, "Name of the model in requests. Default: --model, or the first that the server lists if that is a folder."
    )
    tokenizer: str | None = option(
        None, "Folder of the tokenizer that prompts are measured with, or its name on the Hugging Face hub. Default: "
        "that of --model, if that is a folder; else the server's, by /tokenize and /detokenize.",
        metavar="PATH|NAME",
    )  # fmt: skip
    lora_modules: tuple[str, ...] = option(
        (), "Names of adapters that requests ask for in place of the model. Takes several.", following=ANY_WORD
    )
    lora_assignment: str = option(
        "random", "Which of them a request asks for: any, or one after the other.", choices=("random", "round-robin")
    )
    extra_body: dict[str, Any] = option({}, "Further fields of each request, as JSON.")
    request_id_prefix: str = option("bench-", "What the x-request-id header begins with; the request's number follows.")
    ready_check_timeout_sec: float = option(
        0.0, "Sends the first request until it succeeds, this long, before the benchmark begins; 0 does not.",
        minimum=0.0,
    )  # fmt: skip
    request_timeout_seconds: float = option(3600.0, "Time that a request may take before it has failed.", minimum=0.1)


@dataclass(frozen=True)
class BenchTrafficOptions:
    """When requests are sent."""

    group: ClassVar[str] = "BenchTrafficConfig"

    request_rate: float = option(
        math.inf, "Requests per second, at random intervals; inf sends all at once.", minimum=0.0001
    )
    burstiness: float = option(
        1.0, "Form of the gamma distribution that intervals have: 1 is a Poisson process, less comes in bursts, more "
        "comes evenly, inf at equal intervals. Needs --request-rate.", minimum=0.0001,
    )  # fmt: skip
    max_concurrency: int | None = option(
        None, "Requests under way at any time, at most; others wait in the benchmark.", minimum=1
    )
    ramp_up_strategy: str | None = option(
        None, "How the rate grows in the course of the benchmark, from --ramp-up-start-rps to --ramp-up-end-rps, in "
        "place of --request-rate.", choices=("linear", "exponential"),
    )  # fmt: skip
    ramp_up_start_rps: float | None = option(None, "Requests per second at the beginning.", minimum=0.0001)
    ramp_up_end_rps: float | None = option(None, "Requests per second at the end.", minimum=0.0001)
    num_warmups: int = option(0, "Requests before the benchmark, which do not count.", minimum=0)
    seed: int = option(0, "Of all that is random: prompts, lengths, intervals.")


@dataclass(frozen=True)
class BenchSamplingOptions:
    """Fields of the requests; those that are not given are not sent."""

    group: ClassVar[str] = "BenchSamplingConfig"

    temperature: float | None = option(None, "temperature.", minimum=0.0)
    top_p: float | None = option(None, "top_p.", minimum=0.0, maximum=1.0)
    top_k: int | None = option(None, "top_k.", minimum=-1)
    min_p: float | None = option(None, "min_p.", minimum=0.0, maximum=1.0)
    frequency_penalty: float | None = option(None, "frequency_penalty.", minimum=-2.0, maximum=2.0)
    presence_penalty: float | None = option(None, "presence_penalty.", minimum=-2.0, maximum=2.0)
    repetition_penalty: float | None = option(None, "repetition_penalty.", minimum=0.0)
    logprobs: int | None = option(
        None, "Alternatives whose log-probabilities are asked for with each token.", minimum=0
    )
    ignore_eos: bool = option(
        False, "Asks for as many tokens as the answer may have, whatever the model says. Not of every server."
    )


@dataclass(frozen=True)
class BenchResultOptions:
    """What is reported of a benchmark."""

    group: ClassVar[str] = "BenchResultConfig"

    percentile_metrics: str = option(
        "ttft,tpot,itl", "What is reported: times to the first token (ttft), per further token (tpot), between pieces "
        "of an answer (itl), to the end (e2el), and with --max-concurrency those that requests wait in the benchmark "
        "(client_queue_time) and both (e2el_including_client_queue).",
        metavar="NAME,…",
    )  # fmt: skip
    metric_percentiles: str = option("99", "Percentiles of them.", metavar="NUMBER,…")
    goodput: tuple[str, ...] = option(
        (), "Most milliseconds that a request's ttft, tpot or e2el may take, such as ttft:500 tpot:50: counts the "
        "requests that keep to all of them.", metavar="NAME:MS", following=r"[A-Za-z0-9_]+:",
    )  # fmt: skip
    label: str | None = option(None, "What the result's file name begins with. Default: the backend.")
    save_result: bool = option(False, "Writes the result as JSON.")
    save_detailed: bool = option(False, "Writes each request's times, lengths, text and error, too.")
    append_result: bool = option(False, "Adds the result to the file as a further line.")
    metadata: tuple[str, ...] = option(
        (), "Further keys of the result, such as version=0.3.3. Takes several, and is repeatable.",
        metavar="KEY=VALUE", following=_PAIR,
    )  # fmt: skip
    result_dir: str | None = option(None, "Folder of the file. Default: the one where you are.", metavar="PATH")
    result_filename: str | None = option(
        None, "Name of the file. Default: made of label, rate, model and date.", metavar="NAME"
    )
    plot: str | None = option(
        None, "Draws how TTFT and TPOT are distributed, as SVG; without a value, beside the result.", metavar="FILE",
        bare="auto",
    )  # fmt: skip
    disable_tqdm: bool = option(False, "Shows no progress.")
