"""Names of span attributes: OpenTelemetry's for HTTP, RPC and generative AI, and vLLM's additions."""

from __future__ import annotations

HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
URL_PATH = "url.path"
RPC_SYSTEM = "rpc.system"
RPC_SERVICE = "rpc.service"
RPC_METHOD = "rpc.method"

REQUEST_ID = "gen_ai.request.id"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
MAX_TOKENS = "gen_ai.request.max_tokens"
TEMPERATURE = "gen_ai.request.temperature"
TOP_P = "gen_ai.request.top_p"
N = "gen_ai.request.n"
FINISH_REASONS = "gen_ai.response.finish_reasons"
# The second name in each pair is OpenTelemetry's.
PROMPT_TOKENS, INPUT_TOKENS = "gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens"
COMPLETION_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens"
NUM_SEQUENCES = "gen_ai.usage.num_sequences"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"

# Seconds.
TIME_TO_FIRST_TOKEN = "gen_ai.latency.time_to_first_token"  # noqa: S105  (no password)
TIME_E2E = "gen_ai.latency.e2e"
TIME_IN_QUEUE = "gen_ai.latency.time_in_queue"
TIME_IN_PREFILL = "gen_ai.latency.time_in_model_prefill"
TIME_IN_DECODE = "gen_ai.latency.time_in_model_decode"
TIME_IN_INFERENCE = "gen_ai.latency.time_in_model_inference"
TIME_IN_FORWARD = "gen_ai.latency.time_in_model_forward"
TIME_IN_EXECUTE = "gen_ai.latency.time_in_model_execute"

OUTCOME = "quire.outcome"
WORKER = "quire.worker"
ATTEMPTS = "quire.attempts"
PREEMPTIONS = "quire.preemptions"
