"""The flags of `vllm serve`, grouped as in its help; `!` marks those that its newest version lacks or deprecates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_GROUPS = {
    "General": (
        "aggregate-engine-logging api-server-count config disable-log-requests! disable-log-stats enable-log-requests "
        "fail-on-environ-validation grpc headless help shutdown-timeout"
    ),
    "Frontend": (
        "allow-credentials allowed-headers allowed-methods allowed-origins api-key chat-template "
        "chat-template-content-format cohere-format cohere-is-reasoning-model data-parallel-supervisor-port "
        "default-chat-template-kwargs disable-access-log-for-endpoints disable-fastapi-docs "
        "disable-frontend-multiprocessing disable-uvicorn-access-log dp-supervisor-probe-failure-threshold "
        "dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s enable-auto-tool-choice "
        "enable-flash-late-interaction enable-force-include-usage enable-log-deltas enable-log-outputs "
        "enable-offline-docs enable-per-request-metrics enable-prompt-tokens-details enable-request-id-headers "
        "enable-server-load-tracking enable-ssl-refresh enable-tokenizer-info-endpoint "
        "exclude-tools-when-tool-choice-none fingerprint-mode fingerprint-value h11-max-header-count "
        "h11-max-incomplete-event-size host log-config-file log-error-stack lora-modules max-log-len "
        "max-num-queued-reqs middleware port response-role return-tokens-as-token-ids root-path "
        "sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile stream-interval "
        "tokens-only tool-call-parser tool-parser-plugin tool-server tool-strict-level trust-request-chat-template "
        "trust-request-mm-kwargs uds uvicorn-log-level"
    ),
    "ModelConfig": (
        "allow-deprecated-quantization allowed-local-media-path allowed-media-domains code-revision config-format "
        "convert disable-async-output-proc! disable-cascade-attn disable-sliding-window dtype enable-cumem-allocator "
        "enable-nccl-comm-suspend enable-prompt-embeds enable-return-routed-experts enable-sleep-mode "
        "enable-trace-replay enforce-eager generation-config hf-config-path hf-overrides hf-token io-processor-plugin "
        "language-model-only logits-processor-pattern logits-processors logprobs-mode max-logprobs max-model-len "
        "max-seq-len-to-capture! model model-class-overrides model-impl override-attention-dtype "
        "override-generation-config override-neuron-config! override-pooler-config! pooler-config quantization "
        "quantization-config renderer-num-workers return-sampling-mask revision rope-scaling rope-theta runner seed "
        "served-model-name skip-tokenizer-init task! tokenizer tokenizer-mode tokenizer-pool-extra-config! "
        "tokenizer-pool-size! tokenizer-pool-type! tokenizer-revision trust-remote-code use-fp64-gumbel"
    ),
    "LoadConfig": (
        "download-dir ignore-patterns load-format model-loader-extra-config pt-load-map-location "
        "qlora-adapter-name-or-path! safetensors-load-strategy safetensors-prefetch-block-size "
        "safetensors-prefetch-num-threads use-tqdm-on-load"
    ),
    "MambaConfig": "enable-mamba-cache-stochastic-rounding mamba-backend mamba-cache-philox-rounds mamba-ssu-algorithm",
    "StructuredOutputsConfig": (
        "enable-reasoning! guided-decoding-backend! guided-decoding-disable-additional-properties! "
        "guided-decoding-disable-any-whitespace! guided-decoding-disable-fallback! reasoning-effort reasoning-parser "
        "reasoning-parser-plugin structured-outputs-config"
    ),
    "ParallelConfig": (
        "all2all-backend cp-kv-cache-interleave-size cpu-distributed-timeout-seconds data-parallel-address "
        "data-parallel-backend data-parallel-external-lb data-parallel-hybrid-lb data-parallel-multi-port-external-lb "
        "data-parallel-rank data-parallel-rpc-port data-parallel-size data-parallel-size-local "
        "data-parallel-start-rank dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend "
        "dcp-kv-cache-interleave-size dcp-q-replicate decode-context-parallel-size device-ids "
        "disable-custom-all-reduce disable-nccl-for-dp-synchronization distributed-executor-backend "
        "distributed-timeout-seconds dp-sync-interval enable-batch-sharded-sampling enable-dbo enable-elastic-ep "
        "enable-ep-weight-filter enable-eplb enable-expert-parallel enable-fault-tolerance "
        "enable-multimodal-encoder-data-parallel! eplb-config eplb-log-balancedness! eplb-step-interval! "
        "eplb-window-size! expert-placement-strategy fault-tolerance-config master-addr master-port "
        "max-parallel-loading-workers moe-backend nnodes node-rank num-redundant-experts! numa-bind numa-bind-cpus "
        "numa-bind-nodes pipeline-parallel-size prefill-context-parallel-size ray-workers-use-nsight "
        "tensor-parallel-size ubatch-size worker-cls worker-extension-cls worker-use-ray!"
    ),
    "CacheConfig": (
        "block-size calculate-kv-scales enable-prefix-caching gpu-memory-utilization kv-cache-dtype "
        "kv-cache-dtype-skip-layers kv-cache-memory-bytes kv-offloading-backend kv-offloading-size "
        "kv-sharing-fast-prefill mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-ssm-cache-dtype "
        "num-gpu-blocks-override prefix-cache-retention-interval prefix-caching-hash-algo prefix-match-unit "
        "quantization-param-path! replayssm-buffer-len swap-space use-replayssm use-v2-block-manager!"
    ),
    "OffloadConfig": (
        "cpu-offload-gb cpu-offload-params offload-backend offload-group-size offload-num-in-group offload-params "
        "offload-prefetch-step"
    ),
    "MultiModalConfig": (
        "disable-mm-preprocessor-cache! enable-mm-embeds interleave-mm-strings limit-mm-per-prompt media-io-kwargs "
        "mm-device-do-normalize mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path "
        "mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-only mm-encoder-tp-mode "
        "mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type mm-processor-device "
        "mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc skip-mm-profiling video-pruning-method "
        "video-pruning-rate"
    ),
    "LoRAConfig": (
        "default-mm-loras enable-lora enable-lora-bias! enable-mixed-moe-lora-format enable-moe-shared-loras "
        "enable-tower-connector-lora fully-sharded-loras long-lora-scaling-factors! lora-dtype lora-extra-vocab-size! "
        "lora-target-modules max-cpu-loras max-lora-rank max-loras specialize-active-lora"
    ),
    "ObservabilityConfig": (
        "collect-detailed-traces cudagraph-metrics enable-layerwise-nvtx-tracing enable-logging-iteration-details "
        "enable-mfu-metrics jit-monitor-mode jit-monitor-verbose kv-cache-metrics kv-cache-metrics-sample "
        "otlp-traces-endpoint per-request-spec-decode-metrics show-hidden-metrics-for-version"
    ),
    "SchedulerConfig": (
        "async-scheduling cuda-graph-sizes cudagraph-capture-sizes disable-chunked-mm-input "
        "disable-hybrid-kv-cache-manager enable-chunked-prefill long-prefill-token-threshold max-concurrency "
        "max-cudagraph-capture-size max-long-partial-prefills max-num-batched-tokens max-num-partial-prefills "
        "max-num-queued-tokens max-num-scheduled-tokens max-num-seqs multi-step-stream-outputs! num-lookahead-slots "
        "num-scheduler-steps! preemption-mode! prefill-schedule-interval scheduler-cls scheduler-delay-factor! "
        "scheduler-reserve-full-isl scheduling-policy watermark"
    ),
    "AttentionConfig": "attention-backend",
    "KernelConfig": (
        "enable-bf16x3-router-gemm enable-flashinfer-autotune gdn-prefill-backend ir-op-priority kda-prefill-backend "
        "linear-backend"
    ),
    "SpeculativeConfig": (
        "disable-logprobs-during-spec-decoding! ngram-prompt-lookup-max! ngram-prompt-lookup-min! "
        "num-speculative-tokens! spec-decoding-acceptance-method! spec-method spec-model spec-tokens "
        "speculative-config speculative-disable-by-batch-size! speculative-disable-mqa-scorer! "
        "speculative-draft-tensor-parallel-size! speculative-max-model-len! speculative-model! "
        "speculative-model-quantization! typical-acceptance-sampler-posterior-alpha! "
        "typical-acceptance-sampler-posterior-threshold!"
    ),
    "VllmConfig": (
        "additional-config afd-config attention-config compilation-config diffusion-config ec-manager-config "
        "ec-transfer-config kernel-config kv-events-config kv-transfer-config optimization-level performance-mode "
        "profiler-config reasoning-config watermark-config weight-transfer-config"
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
