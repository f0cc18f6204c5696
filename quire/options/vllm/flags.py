"""The flags of `vllm serve`, grouped as in its help; `!` marks those that its newest version lacks or deprecates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_GROUPS = {
    "General": (
        "api-server-count config disable-log-requests! disable-log-stats enable-log-requests headless help "
        "shutdown-timeout"
    ),
    "Frontend": (
        "allow-credentials allowed-headers allowed-methods allowed-origins api-key chat-template "
        "chat-template-content-format default-chat-template-kwargs disable-access-log-for-endpoints "
        "disable-fastapi-docs disable-frontend-multiprocessing disable-uvicorn-access-log enable-auto-tool-choice "
        "enable-force-include-usage enable-log-deltas enable-log-outputs enable-prompt-tokens-details "
        "enable-request-id-headers enable-server-load-tracking enable-ssl-refresh enable-tokenizer-info-endpoint "
        "exclude-tools-when-tool-choice-none h11-max-header-count h11-max-incomplete-event-size host log-config-file "
        "log-error-stack lora-modules max-log-len max-num-queued-reqs middleware port response-role "
        "return-tokens-as-token-ids root-path sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile "
        "ssl-keyfile stream-interval tool-call-parser tool-parser-plugin tool-server tool-strict-level "
        "trust-request-chat-template trust-request-mm-kwargs uds uvicorn-log-level"
    ),
    "ModelConfig": (
        "allowed-local-media-path allowed-media-domains code-revision config-format convert disable-async-output-proc! "
        "disable-cascade-attn disable-sliding-window dtype enable-prompt-embeds enable-sleep-mode enforce-eager "
        "generation-config hf-config-path hf-overrides hf-token io-processor-plugin language-model-only "
        "logits-processor-pattern logits-processors logprobs-mode max-logprobs max-model-len max-seq-len-to-capture! "
        "model model-impl override-attention-dtype override-generation-config override-neuron-config! "
        "override-pooler-config! pooler-config quantization revision rope-scaling rope-theta runner seed "
        "served-model-name skip-tokenizer-init task! tokenizer tokenizer-mode tokenizer-pool-extra-config! "
        "tokenizer-pool-size! tokenizer-pool-type! tokenizer-revision trust-remote-code"
    ),
    "LoadConfig": (
        "download-dir ignore-patterns load-format model-loader-extra-config pt-load-map-location "
        "qlora-adapter-name-or-path! safetensors-load-strategy use-tqdm-on-load"
    ),
    "StructuredOutputsConfig": (
        "enable-reasoning! guided-decoding-backend! guided-decoding-disable-additional-properties! "
        "guided-decoding-disable-any-whitespace! guided-decoding-disable-fallback! reasoning-effort reasoning-parser "
        "reasoning-parser-plugin structured-outputs-config"
    ),
    "ParallelConfig": (
        "all2all-backend data-parallel-address data-parallel-backend data-parallel-external-lb data-parallel-hybrid-lb "
        "data-parallel-rank data-parallel-rpc-port data-parallel-size data-parallel-size-local "
        "data-parallel-start-rank dbo-decode-token-threshold dbo-prefill-token-threshold decode-context-parallel-size "
        "disable-custom-all-reduce disable-nccl-for-dp-synchronization distributed-executor-backend enable-dbo "
        "enable-eplb enable-expert-parallel enable-multimodal-encoder-data-parallel! eplb-config "
        "eplb-log-balancedness! eplb-step-interval! eplb-window-size! expert-placement-strategy master-addr "
        "master-port max-parallel-loading-workers moe-backend nnodes node-rank num-redundant-experts! "
        "pipeline-parallel-size ray-workers-use-nsight tensor-parallel-size worker-cls worker-extension-cls "
        "worker-use-ray!"
    ),
    "CacheConfig": (
        "block-size calculate-kv-scales cpu-offload-gb enable-prefix-caching gpu-memory-utilization kv-cache-dtype "
        "kv-cache-memory-bytes kv-offloading-backend kv-offloading-size kv-sharing-fast-prefill mamba-cache-dtype "
        "mamba-ssm-cache-dtype num-gpu-blocks-override prefix-caching-hash-algo quantization-param-path! swap-space "
        "use-v2-block-manager!"
    ),
    "MultiModalConfig": (
        "disable-mm-preprocessor-cache! interleave-mm-strings limit-mm-per-prompt media-io-kwargs mm-encoder-tp-mode "
        "mm-processor-cache-gb mm-processor-cache-type mm-processor-kwargs mm-shm-cache-max-object-size-mb "
        "skip-mm-profiling video-pruning-rate"
    ),
    "LoRAConfig": (
        "default-mm-loras enable-lora enable-lora-bias! fully-sharded-loras long-lora-scaling-factors! lora-dtype "
        "lora-extra-vocab-size! max-cpu-loras max-lora-rank max-loras"
    ),
    "ObservabilityConfig": "collect-detailed-traces otlp-traces-endpoint show-hidden-metrics-for-version",
    "SchedulerConfig": (
        "async-scheduling cuda-graph-sizes cudagraph-capture-sizes disable-chunked-mm-input "
        "disable-hybrid-kv-cache-manager enable-chunked-prefill long-prefill-token-threshold max-concurrency "
        "max-cudagraph-capture-size max-long-partial-prefills max-num-batched-tokens max-num-partial-prefills "
        "max-num-seqs multi-step-stream-outputs! num-lookahead-slots num-scheduler-steps! preemption-mode! "
        "scheduler-cls scheduler-delay-factor! scheduling-policy"
    ),
    "AttentionConfig": "attention-backend",
    "KernelConfig": "enable-flashinfer-autotune",
    "SpeculativeConfig": (
        "disable-logprobs-during-spec-decoding! ngram-prompt-lookup-max! ngram-prompt-lookup-min! "
        "num-speculative-tokens! spec-decoding-acceptance-method! spec-method spec-model spec-tokens "
        "speculative-config speculative-disable-by-batch-size! speculative-disable-mqa-scorer! "
        "speculative-draft-tensor-parallel-size! speculative-max-model-len! speculative-model! "
        "speculative-model-quantization! typical-acceptance-sampler-posterior-alpha! "
        "typical-acceptance-sampler-posterior-threshold!"
    ),
    "VllmConfig": (
        "additional-config attention-config compilation-config kv-events-config kv-transfer-config optimization-level "
        "performance-mode"
    ),
    "PromptAdapterConfig": "enable-prompt-adapter! max-prompt-adapter-token! max-prompt-adapters! prompt-adapters!",
    "Device": "device!",
}


@dataclass(frozen=True)
class VllmFlag:
    """A flag of vLLM."""

    name: str  # without leading dashes
    group: str
    current: bool


def vllm_flags() -> Mapping[str, VllmFlag]:
    """All flags by name."""
    marked = [(word, group) for group, words in _GROUPS.items() for word in words.split()]
    return {
        word.removesuffix("!"): VllmFlag(word.removesuffix("!"), group, not word.endswith("!"))
        for word, group in marked
    }  # fmt: skip
