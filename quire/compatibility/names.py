"""Commands, metrics and routes of vLLM by name, and the tests that use the supported ones."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Without their prefix `vllm:`.
_METRICS = """
num_requests_running num_requests_waiting lora_requests_info num_requests_swapped gpu_cache_usage_perc
cpu_cache_usage_perc cpu_prefix_cache_hit_rate gpu_prefix_cache_hit_rate gpu_prefix_cache_queries
gpu_prefix_cache_hits num_preemptions_total prompt_tokens_total generation_tokens_total iteration_tokens_total
time_to_first_token_seconds time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds time_in_queue_requests
model_forward_time_milliseconds model_execute_time_milliseconds request_prompt_tokens request_generation_tokens
request_max_num_generation_tokens request_params_n request_params_max_tokens request_success_total
spec_decode_draft_acceptance_rate spec_decode_efficiency spec_decode_num_accepted_tokens_total
spec_decode_num_draft_tokens_total spec_decode_num_emitted_tokens_total inter_token_latency_seconds
prompt_tokens_cached_total request_time_per_output_token_seconds request_prefill_kv_computed_tokens
request_num_preemptions kv_cache_usage_perc prefix_cache_queries_total prefix_cache_hits_total engine_sleep_state
external_prefix_cache_queries_total external_prefix_cache_hits_total kv_offload_total_bytes_total
"""
METRICS = tuple(_METRICS.split())

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "serve": "tests/integration/test_serve.py",
        "chat": "tests/quire/client/test_chat_command.py",
        "complete": "tests/integration/test_serve.py",
        "bench serve": "tests/quire/bench/test_serve_command.py",
        "bench latency": "tests/integration/test_bench.py",
        "bench throughput": "tests/integration/test_bench.py",
        "run-batch": "tests/integration/test_run_batch.py",
        "collect-env": "tests/quire/environment/test_command.py",
    }
)

_SERVED = """
POST /v1/chat/completions, POST /v1/chat/completions/batch, POST /v1/completions, GET /v1/models, POST
/tokenize, POST /detokenize, GET /tokenizer_info, GET /health, GET /ping, POST /ping, GET /version, GET /load,
GET /metrics, GET /docs, GET /openapi.json, POST /v1/responses, GET /v1/responses/{response_id}, POST
/v1/responses/{response_id}/cancel, POST /v1/messages, POST /v1/messages/count_tokens, POST /invocations, POST
/v1/load_lora_adapter, POST /v1/unload_lora_adapter, POST /inference/v1/generate, POST
/inference/v1/abort_requests, POST /v1/chat/completions/render, POST /v1/completions/render, POST
/v1/messages/render, POST /v1/responses/render, POST /v1/chat/completions/derender, POST /v1/completions/derender,
GET /kv_event_sources, GET /get_tokenizer_info, GET /server_info, POST /v1/embeddings, POST /v2/embed, POST /pooling,
POST /classify, POST /score, POST /v1/score, POST /rerank, POST /v1/rerank, POST /v2/rerank, POST /generative_scoring,
POST /v1/decisions, POST /v1/systemone,
GET /redoc, GET /v1/responses/{response_id}/input_items, DELETE /v1/responses/{response_id}, POST /reset_prefix_cache,
POST /reset_mm_cache, POST /reset_encoder_cache, POST /start_profile, POST /stop_profile, POST /pause, POST /resume,
GET /is_paused, POST /abort_requests, POST /sleep, POST /wake_up, GET /is_sleeping, POST /collective_rpc,
POST /scale_elastic_ep, POST /is_scaling_elastic_ep, POST /v1/audio/transcriptions, POST /v1/audio/translations,
GET /v1/realtime, POST /init_weight_transfer_engine, POST /start_weight_update, POST
/start_draft_weight_update, POST /update_weights, POST /finish_weight_update, POST
/update_weight_version, GET /weight_info, GET /get_world_size, POST /release_kv_cache_memory, POST
/weight_checker, POST /cohere/v2/chat, POST /cohere/v2/chat/render, POST /v1/responses/compact, POST
/v1/responses/input_tokens
"""

ROUTES = tuple(" ".join(_SERVED.split()).split(", "))  # method and path

# What those that work do otherwise.
NOTES_ON_ROUTES: Mapping[str, str] = MappingProxyType(
    {
        "POST /cohere/v2/chat": "For all models, without VLLM_ENABLE_COHERE_API and Cohere's package; answers have no "
        "citations ([cohere.md](cohere.md)).",
        "POST /v1/responses/compact": "The item holds a summary by the model, which only Quire reads back "
        "([responses.md](responses.md#compacting-conversations)).",
        "POST /weight_checker": "The digests are those of the checkpoint's tensors, under its names; reset is refused "
        "([admin.md](admin.md#weights-from-a-trainer)).",
        "GET /v1/realtime": "Voxtral Realtime writes while it hears; other models that transcribe are given segment "
        "after segment ([media.md](media.md#live-audio)).",
    }
)

# Test → the flags that it uses.
_TESTS = {
    "tests/clients/test_clients.py": "enable-tokenizer-info-endpoint",
    "tests/engine_svc/adapters/test_folder.py": "lora-target-modules",
    "tests/engine_svc/config_formats/test_registry.py": "config-format hf-config-path hf-overrides rope-theta",
    "tests/engine_svc/core/test_engine.py": "max-num-batched-tokens",
    "tests/engine_svc/core/test_routed_experts.py": "enable-return-routed-experts",
    "tests/engine_svc/kv_cache/test_sizing.py": "swap-space kv-offloading-size enable-chunked-prefill max-num-seqs",
    "tests/engine_svc/loader/formats/test_by_packages.py": "safetensors-load-strategy",
    "tests/engine_svc/loader/formats/test_sharded_state.py": "load-format model-loader-extra-config",
    "tests/engine_svc/loader/formats/test_torch_files.py": "pt-load-map-location",
    "tests/engine_svc/loader/test_loader.py": "disable-sliding-window max-model-len rope-scaling",
    "tests/engine_svc/lora/test_batches.py": "fully-sharded-loras",
    "tests/engine_svc/models/test_connectors.py": "kv-transfer-config",
    "tests/engine_svc/models/test_dual_batch.py": ("enable-dbo dbo-decode-token-threshold dbo-prefill-token-threshold"),
    "tests/engine_svc/models/test_skipped_layers.py": "kv-cache-dtype-skip-layers",
    "tests/engine_svc/models/test_exactness.py": "model-impl calculate-kv-scales kv-cache-dtype async-scheduling",
    "tests/engine_svc/models/test_expert_parallel.py": (
        "enable-expert-parallel expert-placement-strategy enable-eplb eplb-config"
    ),
    "tests/engine_svc/media/test_pruning.py": "video-pruning-rate",
    "tests/engine_svc/models/test_hybrids.py": "mamba-cache-dtype mamba-ssm-cache-dtype",
    "tests/engine_svc/models/test_resume.py": "distributed-executor-backend",
    "tests/engine_svc/quantization/test_registry.py": "quantization",
    "tests/engine_svc/requests/test_generation_config.py": "generation-config",
    "tests/engine_svc/sampling/test_watermark.py": "watermark-config",
    "tests/engine_svc/runner/test_graphs.py": "attention-backend",
    "tests/engine_svc/runner/test_host_weights.py": "cpu-offload-gb offload-group-size offload-num-in-group",
    "tests/engine_svc/models/test_context_parallel.py": "decode-context-parallel-size",
    "tests/engine_svc/models/test_pipeline.py": "pipeline-parallel-size",
    "tests/engine_svc/runner/test_threads.py": "numa-bind-nodes numa-bind-cpus",
    "tests/engine_svc/runner/test_native_calls.py": "enable-prefix-caching",
    "tests/engine_svc/sampling/test_kept_tokens.py": "return-sampling-mask",
    "tests/engine_svc/scheduler/test_scheduler.py": (
        "disable-chunked-mm-input long-prefill-token-threshold max-long-partial-prefills max-num-partial-prefills"
    ),
    "tests/engine_svc/service/test_adapters.py": "enable-lora",
    "tests/engine_svc/service/test_kv_publisher.py": "kv-events-config",
    "tests/engine_svc/service/test_engine_service.py": "num-gpu-blocks-override",
    "tests/gateway/answers/test_patience.py": "sse-keep-alive-interval",
    "tests/gateway/endpoints/test_operations.py": "allow-credentials allowed-origins api-key",
    "tests/gateway/test_access_log.py": "disable-access-log-for-endpoints",
    "tests/gateway/requests/test_request_log.py": (
        "enable-log-requests enable-log-outputs max-log-len log-error-stack"
    ),
    "tests/gateway/reasoning_parsers/test_registry.py": "reasoning-config reasoning-parser-plugin",
    "tests/gateway/requests/test_thinking.py": "enable-reasoning reasoning-effort reasoning-parser",
    "tests/gateway/requests/test_tools.py": "enable-auto-tool-choice exclude-tools-when-tool-choice-none",
    "tests/gateway/media/test_conversations.py": "limit-mm-per-prompt",
    "tests/gateway/media/test_local_files.py": "allowed-local-media-path",
    "tests/gateway/media/test_settings.py": "trust-request-mm-kwargs",
    "tests/gateway/media/test_web.py": "allowed-media-domains",
    "tests/gateway/middleware/test_of_users.py": "middleware",
    "tests/gateway/test_certificates.py": "enable-ssl-refresh ssl-ciphers",
    "tests/gateway/test_connections.py": "h11-max-header-count h11-max-incomplete-event-size",
    "tests/gateway/test_openapi.py": "disable-fastapi-docs",
    "tests/gateway/test_unix_socket.py": "log-config-file uds",
    "tests/gateway/tool_parsers/test_registry.py": "tool-call-parser tool-parser-plugin",
    "tests/gpu/test_gpu.py": "enforce-eager device",
    "tests/integration/test_data_parallel.py": "api-server-count data-parallel-rpc-port",
    "tests/integration/test_images.py": "enable-mm-embeds",
    "tests/integration/test_migration.py": "dtype",
    "tests/integration/test_nodes.py": "nnodes node-rank master-addr master-port",
    "tests/integration/test_sampling_fields.py": (
        "return-tokens-as-token-ids logits-processor-pattern logits-processors logprobs-mode max-logprobs"
    ),
    "tests/integration/test_serve.py": (
        "collect-detailed-traces otlp-traces-endpoint "
        "port root-path ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-keyfile kv-cache-memory-bytes"
    ),
    "tests/integration/test_token_ids_only.py": "enable-prompt-tokens-details enable-prompt-embeds skip-tokenizer-init",
    "tests/quire/options/test_lora.py": "default-mm-loras lora-modules max-cpu-loras",
    "tests/quire/options/test_multimodal.py": "media-io-kwargs",
    "tests/quire/options/test_options.py": "hf-token override-generation-config",
    "tests/quire/options/test_speculative.py": "num-lookahead-slots speculative-config",
    "tests/quire/options/test_structured_outputs.py": "guided-decoding-disable-fallback structured-outputs-config",
    "tests/quire/serve/test_data_parallel.py": (
        "data-parallel-address data-parallel-rank data-parallel-size data-parallel-size-local data-parallel-start-rank "
        "data-parallel-hybrid-lb headless"
    ),
    "tests/quire/serve/test_devices.py": "device-ids tensor-parallel-size",
    "tests/quire/test_hub.py": "revision download-dir ignore-patterns",
    "tests/quire/tokenizer/test_modes.py": "tokenizer-mode",
    "tests/router/test_adapters.py": "max-loras",
    "tests/tokenizer_svc/test_image_processor.py": "mm-processor-kwargs",
    "tests/tokenizer_svc/test_images.py": "mm-processor-cache-gb interleave-mm-strings",
    "tests/tokenizer_svc/test_tokenizer_process.py": "chat-template trust-request-chat-template",
}
TESTS_OF_FLAGS: Mapping[str, str] = MappingProxyType(
    {flag: test for test, flags in _TESTS.items() for flag in flags.split()}
)
