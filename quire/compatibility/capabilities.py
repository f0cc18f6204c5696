"""The capabilities that vLLM's documentation lists, by kind, and the evidence that Quire has them.

The value of each name is a test that uses it, as `file::function` below tests/; or the flag (`--name`) or route (`POST
/path`) that provides it, whose own status applies; or, after `refused:` or `no effect:`, why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from quire.options.structured_outputs import REFUSED_BACKENDS


@dataclass(frozen=True)
class Values:
    """The values of a flag, some of which it may refuse.

    Attributes:
        test: a test that uses the values that work.
    """

    names: tuple[str, ...]
    test: str


def _values(names: str, test: str) -> Values:
    return Values(tuple(names.split()), f"tests/{test}")


# Flag → the values that vLLM documents.
VALUES: Mapping[str, Values] = MappingProxyType(
    {
        "tool-call-parser": _values(
            "deepseek_v3 deepseek_v31 gigachat3 glm4_moe glm45 glm47 granite granite-20b-fc hermes hunyuan_a13b "
            "internlm "
            "jamba kimi_k2 llama3_json llama4_json llama4_pythonic minimax minimax_m1 mistral olmo3 phi4_mini_json "
            "pythonic qwen qwen3_coder step3p5 xlam",
            "gateway/tool_parsers/test_families.py",
        ),
        "reasoning-parser": _values(
            "deepseek_r1 glm4_moe glm45 granite hunyuan_a13b mistral openai_gptoss qwen3 seed_oss step3 step3p5",
            "conformance/test_answer_parsers.py",
        ),
        "quantization": _values(
            "aqlm auto-round awq awq_marlin bitsandbytes compressed-tensors deepspeedfp experts_int8 fbgemm_fp8 "
            "fp8 gguf "
            "gptq gptq_marlin gptq_marlin_24 gptqmodel hqq int4 int8 ipex marlin modelopt neuron_quant qqq squeezellm "
            "torchao tpu_int8",
            "engine_svc/quantization/test_registry.py",
        ),
        "load-format": _values(
            "auto pt safetensors npcache dummy tensorizer runai_streamer runai_streamer_sharded fastsafetensors "
            "bitsandbytes sharded_state gguf mistral",
            "engine_svc/loader/formats/test_registry.py",
        ),
        "safetensors-load-strategy": _values("lazy eager", "engine_svc/loader/formats/test_by_packages.py"),
        "config-format": _values("auto hf mistral", "engine_svc/config_formats/test_registry.py"),
        "model-impl": _values("auto vllm transformers terratorch", "engine_svc/models/test_exactness.py"),
        "tokenizer-mode": _values("auto slow mistral custom", "quire/tokenizer/test_modes.py"),
        "dtype": _values("auto half float16 bfloat16 float float32", "engine_svc/loader/test_loader.py"),
        "kv-cache-dtype": _values("auto bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc", "engine_svc/models/test_exactness.py"),
        "logprobs-mode": _values(
            "raw_logprobs processed_logprobs raw_logits processed_logits", "engine_svc/sampling/test_logprobs_modes.py"
        ),
        "distributed-executor-backend": _values("ray mp uni external_launcher", "conformance/test_executors.py"),
        "attention-backend": _values("auto FLASH_ATTN FLASHINFER XFORMERS TORCH_SDPA", "conformance/test_attention.py"),
        "device": _values("cuda rocm cpu neuron openvino tpu xpu hpu", "gpu/test_gpu.py"),
        "guided-decoding-backend": _values(
            "auto guidance lm-format-enforcer outlines xgrammar", "conformance/test_structured_backends.py"
        ),
        "scheduling-policy": _values("fcfs priority", "engine_svc/scheduler/test_scheduler.py"),
        "prefix-caching-hash-algo": _values(
            "builtin sha256 sha256_cbor sha256_cbor_64bit", "quire/options/vllm/test_flags.py"
        ),
        "preemption-mode": _values("recompute swap", "engine_svc/models/test_exactness.py"),
        "runner": _values("auto generate pooling draft", "quire/options/vllm/test_flags.py"),
        "convert": _values("auto none embed classify reward", "quire/options/vllm/test_flags.py"),
        "task": _values(
            "auto generate embed embedding classify score reward draft transcription",
            "quire/options/vllm/test_flags.py",
        ),
    }
)

_OTHER_HARDWARE = "refused: Quire runs only on CPUs and NVIDIA GPUs."
_CUTS = "engine_svc/models/test_exactness.py"

# Kind → name → evidence.
CAPABILITIES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "tools": {
            "parser plugins": "gateway/tool_parsers/test_registry.py::the_plugin_of_the_documentation",
            "tool server": "--tool-server",
            "automatic choice": "--enable-auto-tool-choice",
            "definitions left out of the prompt if no tool may be called": "--exclude-tools-when-tool-choice-none",
            "calls that fit their JSON schemas": (
                "gateway/endpoints/test_tool_calls.py::a_call_that_is_asked_for_is_held_to_its_schema"
            ),
        },
        "quantization": {
            "bitsandbytes NF4 and FP4": "engine_svc/quantization/test_bitsandbytes.py::codes_of_four_bits",
            "bitsandbytes 8-bit": "engine_svc/quantization/test_bitsandbytes.py::bytes",
            "INT8 weights and inputs (W8A8)": "engine_svc/quantization/test_compressed_tensors.py::models",
            "FP8 weights and inputs (W8A8)": (
                "no effect: Such checkpoints are served, but their inputs stay in 16 or 32 bits."
            ),
            "FP8 weights, 16-bit inputs (W8A16)": "engine_svc/quantization/test_compressed_tensors.py::models",
            "quantization of an unquantized checkpoint as it loads": "engine_svc/quantization/test_on_load.py::models",
            "method detected from quantization_config": (
                "engine_svc/quantization/test_registry.py::names_stand_for_methods"
            ),
            "automatic choice of the fastest kernel": "engine_svc/quantization/test_gptq.py::names_that_lead_here",
            "experts": "engine_svc/quantization/test_int8.py::int8_experts",
        },
        "structured output": {
            "JSON schema": "integration/test_openai_sdk.py::parsed_into_a_model",
            "regular expression": "engine_svc/models/test_structured.py::all_that_has_finished_is_valid",
            "grammar": "integration/test_openai_sdk.py::a_grammar_is_followed",
            "xgrammar, guidance, outlines": "conformance/test_structured_backends.py",
            "lm-format-enforcer": f"refused: {REFUSED_BACKENDS['lm-format-enforcer']}",
            "fallback to another backend": (
                "tokenizer_svc/test_constraint_compiler.py::another_backend_takes_what_one_cannot_express"
            ),
            "no whitespace between parts": (
                "tokenizer_svc/test_constraint_compiler.py::the_servers_switches_are_every_requests"
            ),
            "no additional properties": "gateway/requests/test_constraint.py::switches",
            "backend chosen by the request": "gateway/requests/test_constraint.py::old_switches",
            "cache of compiled grammars": "tokenizer_svc/test_constraint_compiler.py::the_same_is_compiled_once",
        },
        "speculation": {
            "draft model": "engine_svc/models/test_drafts.py::another_model_as_draft",
            "n-gram lookup in the prompt": "engine_svc/speculative/test_ngram.py::what_followed_the_last_tokens_before",
            "multi-token prediction layers (MTP)": (
                "engine_svc/models/test_heads.py::guesses_are_those_of_plain_torch"
            ),
            "rejection sampler": (
                "engine_svc/sampling/test_speculative_distribution.py::outputs_have_the_distribution_of_plain_sampling"
            ),
            "typical acceptance": (
                "engine_svc/sampling/test_verification.py::typical_acceptance_takes_what_is_likely_enough"
            ),
            "scoring without batch expansion": "--speculative-disable-mqa-scorer",
            "quantized draft": "--speculative-model-quantization",
            "draft model on several ranks": "engine_svc/models/test_drafts.py::two_ranks",
            "drafts only up to a sequence length": "--speculative-max-model-len",
            "no drafts above a batch size": "--speculative-disable-by-batch-size",
            "no drafts for requests with logprobs": "--disable-logprobs-during-spec-decoding",
            "lookahead slots": "--num-lookahead-slots",
            "acceptance metrics": "gateway/metrics/test_metrics.py::speculation",
        },
        "parallelism": {
            "tensor": f"{_CUTS}::tensor_parallel",
            "pipeline": "--pipeline-parallel-size",
            "data": "--data-parallel-size",
            "expert": "--enable-expert-parallel",
            "expert load balancing": "--enable-eplb",
            "expert placement": "--expert-placement-strategy",
            "redundant experts": "--num-redundant-experts",
            "decode context parallelism": "--decode-context-parallel-size",
            "dual batch overlap": "--enable-dbo",
            "data-parallel image encoders": "--enable-multimodal-encoder-data-parallel",
            "internal load balancing": "integration/test_data_parallel.py::both_ranks_answer_at_one_port",
            "hybrid load balancing": "--data-parallel-hybrid-lb",
            "external load balancing": "--data-parallel-rank",
            "headless nodes": "--headless",
            "several nodes without Ray": "--nnodes",
            "several API servers": "--api-server-count",
        },
        "attention": {
            "sliding window": "engine_svc/kv_cache/test_kv_cache.py::a_sliding_window_gives_blocks_back",
            "cascade attention": "--disable-cascade-attn",
            "hybrid caches (layers with and without a "
            "window)": "engine_svc/kv_cache/test_kv_cache.py::layers_are_grouped",
            "separate data type for attention": "--override-attention-dtype",
            "KV caches shared by layers": "engine_svc/models/test_gemma4.py::"
            "layers_that_borrow_compute_only_rows_that_are_sampled_from",
            "scales of an FP8 KV cache": f"{_CUTS}::scales_of_the_kv_cache_are_calculated",
            "multi-head latent attention (MLA)": f"{_CUTS}::compressed_attention_caches_one_vector_a_token",
        },
        "key-value cache": {
            "paged KV cache": f"{_CUTS}::block_sizes",
            "automatic prefix caching": f"{_CUTS}::prefix_cache_hits",
            "route to reset the prefix cache": "POST /reset_prefix_cache",
            "size by memory fraction or in bytes": "--kv-cache-memory-bytes",
            "fixed number of blocks": "--num-gpu-blocks-override",
            "swap space in host memory": f"{_CUTS}::blocks_come_back_from_the_host",
            "weights offloaded to host memory": "--cpu-offload-gb",
            "KV transfer between instances": "--kv-transfer-config",
            "KV events for other programs": "--kv-events-config",
            "data types of Mamba states": "--mamba-cache-dtype",
        },
        "scheduling": {
            "continuous batching within a token budget": (
                "engine_svc/scheduler/test_scheduler.py::running_first_then_waiting_within_the_budget"
            ),
            "chunked prefill": f"{_CUTS}::chunked_prefill",
            "concurrent partial prefills": "engine_svc/scheduler/test_scheduler.py::several_long_prompts_at_once",
            "threshold for long prompts": "--long-prefill-token-threshold",
            "asynchronous scheduling": f"{_CUTS}::overlapped_steps",
            "multi-step scheduling": "--num-scheduler-steps",
            "delay factor": "--scheduler-delay-factor",
            "custom scheduler": "--scheduler-cls",
            "images not split across steps": "--disable-chunked-mm-input",
            "limit on concurrent requests": "--max-concurrency",
        },
        "adapters": {
            "several on one base model": "engine_svc/lora/test_batches.py::each_sequence_is_what_it_is_alone",
            "loaded at startup, as NAME=PATH or JSON": "--lora-modules",
            "loaded and unloaded while serving": "POST /v1/load_lora_adapter",
            "selected by the request's model": "integration/test_adapters.py::answers_are_those_of_merged_weights",
            "kept in host memory": "--max-cpu-loras",
            "fully sharded": "--fully-sharded-loras",
            "per modality": "--default-mm-loras",
            "data type": "--lora-dtype",
            "on quantized weights": "engine_svc/lora/test_batches.py::quantized_base",
            "LongLoRA scaling factors": "--long-lora-scaling-factors",
            "metric of adapters in use": "gateway/endpoints/test_adapters.py::metrics_tell_which_are_in_use",
        },
        "images, audio and video": {
            "image input": "engine_svc/media/test_exactness.py::families",
            "video input": "integration/test_videos.py",
            "audio input": "integration/test_audio.py",
            "transcription": "POST /v1/audio/transcriptions",
            "embeddings of images": "--enable-mm-embeds",
            "live transcription": "GET /v1/realtime",
            "live transcription while audio arrives": "engine_svc/media/test_live_recordings.py",
            "translation of speech": "POST /v1/audio/translations",
            "limits per modality": "--limit-mm-per-prompt",
            "processor settings": "--mm-processor-kwargs",
            "media decoder settings": "--media-io-kwargs",
            "processor cache": "--mm-processor-cache-gb",
            "interleaved text and images": "--interleave-mm-strings",
            "skipping encoder profiling": "--skip-mm-profiling",
            "video pruning": "--video-pruning-rate",
            "tensor-parallel encoders": "--mm-encoder-tp-mode",
            "local media folder": "--allowed-local-media-path",
            "allowed media domains": "--allowed-media-domains",
        },
        "positions": {
            "linear": f"{_CUTS}::rope_scalings",
            "dynamic": f"{_CUTS}::dynamic_rope_past_the_trained_length",
            "YaRN": f"{_CUTS}::compressed_attention_with_yarn",
        },
        "sampling": {
            "temperature, top-p, top-k": "engine_svc/sampling/test_sampler.py::distribution",
            "repetition penalty": "engine_svc/sampling/test_sampler.py::repetition_penalty_as_transformers",
            "logprobs, up to a limit": "integration/test_openai_sdk.py::logprobs_are_those_of_transformers",
            "prompt logprobs": "gateway/endpoints/test_answers.py::prompt_logprobs",
            "tokens returned as ids": "gateway/endpoints/test_answers.py::tokens_as_ids",
            "logits processors set by the operator": "integration/test_sampling_fields.py::the_operators_processors",
            "logits processors set by the request": "integration/test_sampling_fields.py::the_requests_processors",
            "bad words": "integration/test_sampling_fields.py::bad_words",
            "beam search": "integration/test_openai_sdk.py::beam_search_equals_transformers",
            "n choices": "integration/test_openai_sdk.py::n_choices_differ_and_repeat_with_the_seed",
            "server seed": ("integration/test_sampling_fields.py::what_brings_no_seed_repeats_after_the_next_start"),
            "defaults from the generation config": (
                "engine_svc/requests/test_generation_config.py::auto_reads_the_models_own"
            ),
            "max_new_tokens of the generation config as a limit": (
                "gateway/requests/test_output_limit.py::a_request_gets_no_more_than_the_generation_config_allows"
            ),
        },
        "pooling": {
            "configuration": "--pooler-config",
            "embeddings": "POST /v1/embeddings",
            "classification": "POST /classify",
            "rewards and other vectors": "POST /pooling",
            "scores": "POST /score",
            "reranking": "POST /rerank",
            "images": "integration/test_pooled_images.py::vectors_and_scores",
            "tensor parallelism": "engine_svc/executor/test_pooled.py::vectors_of_a_decoder_with_images",
            "input/output processors": "--io-processor-plugin",
        },
        "engine": {
            "sleep mode": "POST /sleep",
            "embeddings as prompts": "integration/test_token_ids_only.py::embeddings_are_prompts",
            "running without a tokenizer": "integration/test_token_ids_only.py::token_ids_in_and_out",
            "torch.compile": (
                "refused: Quire does not use torch.compile. A decode step is replayed as a whole, as CUDA graphs or as "
                "one call of C++ kernels; -O and --compilation-config set which batches are recorded."
            ),
            "CUDA graphs": "engine_svc/runner/test_graphs.py::tokens_are_the_same",
            "eager mode, without graphs": "--enforce-eager",
            "custom worker classes": "--worker-cls",
            "calling worker methods by name": (
                "refused: whoever may call any method could run anything. POST /collective_rpc takes reload_weights "
                "only."
            ),
            "new weights in a running engine": "integration/test_admin.py::new_weights_from_a_folder",
            "new weights from a trainer": "engine_svc/core/test_weight_transfer.py::sent_weights_are_those_of_a_folder",
            "plugins": "quire/test_registry.py::an_installed_package_may_bring_one",
            "profiling a running engine": "POST /start_profile",
            "Nsight profiling under Ray": "--ray-workers-use-nsight",
            "usage reports": "no effect: Quire sends no usage reports.",
            "tokenizer pool": "--tokenizer-pool-size",
            "code from model repositories": "--trust-remote-code",
            "models from ModelScope": "quire/test_hub.py::modelscope_is_asked_by_its_package",
        },
        "server": {
            "OpenAI's own clients": "clients/test_clients.py::client",
            "TLS and client "
            "certificates": "integration/test_serve.py::behind_a_proxy_with_keys_and_client_certificates",
            "certificate reload without a restart": "--enable-ssl-refresh",
            "CORS": "gateway/endpoints/test_operations.py::browsers_of_allowed_origins",
            "API keys": "gateway/endpoints/test_every_route.py::without_the_key_nothing_but_probes_answers",
            "Unix socket": "gateway/test_unix_socket.py::both_gateways_answer",
            "custom middleware": "--middleware",
            "root path behind a proxy": "gateway/endpoints/test_operations.py::below_a_proxys_path_the_same_is_public",
            "request ids": "gateway/endpoints/test_operations.py::request_ids",
            "load tracking": "GET /load",
            "header limits": "gateway/test_connections.py::headers_that_are_too_large",
            "logging configuration": "quire/test_log.py::it_says_where_and_how",
            "access log": "--disable-uvicorn-access-log",
            "request logs": "--enable-log-requests",
            "stack traces of errors in the log": "--log-error-stack",
            "content format of chat templates": "--chat-template-content-format",
            "chat templates in requests": "tokenizer_svc/test_chat_template.py::a_template_of_the_request",
            "usage in every stream": "--enable-force-include-usage",
            "OpenTelemetry": "integration/test_serve.py::a_trace_over_all_services",
            "Prometheus": "gateway/endpoints/test_operations.py::metrics_have_vllms_names",
            "several names for a model": (
                "gateway/endpoints/test_operations.py::a_model_of_many_names_answers_by_its_first"
            ),
        },
        "command line": {
            "--help=listgroup": "quire/options/test_help.py::groups_are_listed_by_vllms_names",
            "--help=ModelConfig": "quire/options/test_help.py::a_group",
            "--help=max-num-seqs": "quire/options/test_help.py::one_flag",
            "--help=max": "quire/options/test_help.py::a_word",
            "--json-arg JSON, and one key at a time": (
                "quire/options/test_options.py::a_key_of_an_object_is_a_flag_of_its_own"
            ),
            "-O3, -O 3, -O.level=3, -O='{…}'": "quire/options/vllm/test_flags.py::other_ways_to_write_them",
            "numbers such as 1k, 1K, 25.6k": "quire/options/test_options.py::integers_with_suffixes",
            "--no-x": "quire/options/test_options.py::booleans_in_the_environment",
            "underscores, auto, several values": "quire/options/vllm/test_flags.py::other_ways_to_write_them",
            "YAML file with --config": "quire/options/test_options.py::flag_beats_environment_beats_file_beats_default",
        },
        "deployment": {
            "profiles from guides": "integration/test_profiles.py::it_is_taken_or_says_why_not",
            "containers": "integration/test_compose.py::a_chat_through_the_services_of_compose",
            "Kubernetes service named quire": (
                "quire/options/test_environment.py::a_kubernetes_service_called_quire_does_no_harm"
            ),
            "ROCm, Neuron, OpenVINO, TPU, XPU, HPU": _OTHER_HARDWARE,
        },
    }
)
