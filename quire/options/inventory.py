"""Flags that users of vLLM know and Quire does not have: refused by name, so that nobody relies on one in vain."""

from __future__ import annotations

# Why, of those that will stay refused.
REASONS = {
    "trust-remote-code": (
        "The code of a repository is never run here: whoever can write there could do anything on this machine. The "
        "families of Quire and of the Transformers library need none; leave it out."
    ),
    "code-revision": "The code of a repository is never run here, whatever its revision; leave it out.",
    "enable-lora-bias": (
        "It is gone from there as well: biases are no low-rank part of a model. Leave it out, and merge an adapter "
        "that has some into its base."
    ),
    "lora-extra-vocab-size": (
        "It is gone from there as well: an adapter has the vocabulary of its base. Leave it out, and merge one that "
        "adds tokens into its base."
    ),
    "long-lora-scaling-factors": (
        "Nothing has taken its place: positions are scaled alike for all adapters. Serve those of one factor by "
        "--rope-scaling, by a server for each factor."
    ),
    "qlora-adapter-name-or-path": (
        "It has no effect there either. --enable-lora and --lora-modules NAME=PATH serve an adapter, on quantized "
        "weights as well."
    ),
}

UNIMPLEMENTED = frozenset(
    [
        "additional-config",
        "aggregate-engine-logging",
        "allowed-local-media-path",
        "allowed-media-domains",
        "api-server-count",
        "chat-template-content-format",
        "code-revision",
        "collect-detailed-traces",
        "compilation-config",
        "convert",
        "cpu-offload-gb",
        "data-parallel-address",
        "data-parallel-backend",
        "data-parallel-hybrid-lb",
        "data-parallel-rank",
        "data-parallel-rpc-port",
        "data-parallel-size",
        "data-parallel-size-local",
        "data-parallel-start-rank",
        "dbo-decode-token-threshold",
        "dbo-prefill-token-threshold",
        "decode-context-parallel-size",
        "default-mm-loras",
        "disable-async-output-proc",
        "disable-cascade-attn",
        "disable-chunked-mm-input",
        "disable-custom-all-reduce",
        "disable-frontend-multiprocessing",
        "disable-hybrid-kv-cache-manager",
        "disable-log-requests",
        "disable-log-stats",
        "disable-mm-preprocessor-cache",
        "enable-dbo",
        "enable-eplb",
        "enable-expert-parallel",
        "enable-log-outputs",
        "enable-log-requests",
        "enable-lora-bias",
        "enable-multimodal-encoder-data-parallel",
        "enable-prompt-adapter",
        "enable-server-load-tracking",
        "enable-sleep-mode",
        "enable-ssl-refresh",
        "eplb-config",
        "eplb-log-balancedness",
        "eplb-step-interval",
        "eplb-window-size",
        "expert-placement-strategy",
        "h11-max-header-count",
        "h11-max-incomplete-event-size",
        "headless",
        "interleave-mm-strings",
        "io-processor-plugin",
        "kv-events-config",
        "kv-transfer-config",
        "limit-mm-per-prompt",
        "log-config-file",
        "log-error-stack",
        "long-lora-scaling-factors",
        "lora-extra-vocab-size",
        "max-concurrency",
        "max-log-len",
        "max-parallel-loading-workers",
        "max-prompt-adapter-token",
        "max-prompt-adapters",
        "max-seq-len-to-capture",
        "media-io-kwargs",
        "middleware",
        "mm-encoder-tp-mode",
        "mm-processor-cache-gb",
        "mm-processor-cache-type",
        "mm-processor-kwargs",
        "mm-shm-cache-max-object-size-mb",
        "multi-step-stream-outputs",
        "num-redundant-experts",
        "num-scheduler-steps",
        "otlp-traces-endpoint",
        "override-attention-dtype",
        "override-neuron-config",
        "override-pooler-config",
        "pipeline-parallel-size",
        "pooler-config",
        "preemption-mode",
        "prefix-caching-hash-algo",
        "prompt-adapters",
        "qlora-adapter-name-or-path",
        "quantization-param-path",
        "ray-workers-use-nsight",
        "runner",
        "scheduler-cls",
        "scheduler-delay-factor",
        "show-hidden-metrics-for-version",
        "skip-mm-profiling",
        "task",
        "tokenizer-pool-extra-config",
        "tokenizer-pool-size",
        "tokenizer-pool-type",
        "trust-remote-code",
        "uds",
        "use-v2-block-manager",
        "video-pruning-rate",
        "worker-cls",
        "worker-extension-cls",
        "worker-use-ray",
    ]
)
