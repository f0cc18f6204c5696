from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PoolingTask(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_TASK_UNSPECIFIED: _ClassVar[PoolingTask]
    POOLING_TASK_EMBED: _ClassVar[PoolingTask]
    POOLING_TASK_CLASSIFY: _ClassVar[PoolingTask]
    POOLING_TASK_TOKEN_EMBED: _ClassVar[PoolingTask]
    POOLING_TASK_TOKEN_CLASSIFY: _ClassVar[PoolingTask]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_ABORT: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]
    FINISH_REASON_REPETITION: _ClassVar[FinishReason]
POOLING_TASK_UNSPECIFIED: PoolingTask
POOLING_TASK_EMBED: PoolingTask
POOLING_TASK_CLASSIFY: PoolingTask
POOLING_TASK_TOKEN_EMBED: PoolingTask
POOLING_TASK_TOKEN_CLASSIFY: PoolingTask
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_ABORT: FinishReason
FINISH_REASON_ERROR: FinishReason
FINISH_REASON_REPETITION: FinishReason

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("service", "version", "instance_id", "start_time_seconds", "grpc_services")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    START_TIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    GRPC_SERVICES_FIELD_NUMBER: _ClassVar[int]
    service: str
    version: str
    instance_id: str
    start_time_seconds: float
    grpc_services: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, service: _Optional[str] = ..., version: _Optional[str] = ..., instance_id: _Optional[str] = ..., start_time_seconds: _Optional[float] = ..., grpc_services: _Optional[_Iterable[str]] = ...) -> None: ...

class Generation(_message.Message):
    __slots__ = ("request_id", "model", "prompt_token_ids", "sampling", "priority", "cache_salt", "timeout_ms", "progress", "prompt_block_keys", "prompt_block_size", "tenant", "session_id", "constraint", "prompt_embeds", "traceparent", "tracestate", "images", "tenant_weight", "kv_source", "remote_decode")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_BLOCK_KEYS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_EMBEDS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    TENANT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    KV_SOURCE_FIELD_NUMBER: _ClassVar[int]
    REMOTE_DECODE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: SamplingParams
    priority: int
    cache_salt: str
    timeout_ms: int
    progress: _containers.RepeatedCompositeFieldContainer[ChoiceProgress]
    prompt_block_keys: _containers.RepeatedScalarFieldContainer[int]
    prompt_block_size: int
    tenant: str
    session_id: str
    constraint: Constraint
    prompt_embeds: PromptEmbeds
    traceparent: str
    tracestate: str
    images: _containers.RepeatedCompositeFieldContainer[Image]
    tenant_weight: float
    kv_source: str
    remote_decode: bool
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., progress: _Optional[_Iterable[_Union[ChoiceProgress, _Mapping]]] = ..., prompt_block_keys: _Optional[_Iterable[int]] = ..., prompt_block_size: _Optional[int] = ..., tenant: _Optional[str] = ..., session_id: _Optional[str] = ..., constraint: _Optional[_Union[Constraint, _Mapping]] = ..., prompt_embeds: _Optional[_Union[PromptEmbeds, _Mapping]] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ..., images: _Optional[_Iterable[_Union[Image, _Mapping]]] = ..., tenant_weight: _Optional[float] = ..., kv_source: _Optional[str] = ..., remote_decode: _Optional[bool] = ...) -> None: ...

class Image(_message.Message):
    __slots__ = ("offset", "num_tokens", "inputs", "pixel_scale", "pixel_shift", "routing_key", "encoder", "goes_on")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    PIXEL_SCALE_FIELD_NUMBER: _ClassVar[int]
    PIXEL_SHIFT_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    GOES_ON_FIELD_NUMBER: _ClassVar[int]
    offset: int
    num_tokens: int
    inputs: _containers.RepeatedCompositeFieldContainer[ImageInput]
    pixel_scale: _containers.RepeatedScalarFieldContainer[float]
    pixel_shift: _containers.RepeatedScalarFieldContainer[float]
    routing_key: int
    encoder: str
    goes_on: bool
    def __init__(self, offset: _Optional[int] = ..., num_tokens: _Optional[int] = ..., inputs: _Optional[_Iterable[_Union[ImageInput, _Mapping]]] = ..., pixel_scale: _Optional[_Iterable[float]] = ..., pixel_shift: _Optional[_Iterable[float]] = ..., routing_key: _Optional[int] = ..., encoder: _Optional[str] = ..., goes_on: _Optional[bool] = ...) -> None: ...

class ImageInput(_message.Message):
    __slots__ = ("name", "dtype", "shape", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class PromptEmbeds(_message.Message):
    __slots__ = ("dtype", "hidden_size", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    hidden_size: int
    data: bytes
    def __init__(self, dtype: _Optional[str] = ..., hidden_size: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ChoiceProgress(_message.Message):
    __slots__ = ("token_ids", "finished")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finished: bool
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., finished: _Optional[bool] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("n", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "stop_token_ids", "ignore_eos", "logit_bias", "logprobs", "prompt_logprobs", "bad_words", "allowed_token_ids", "logprob_token_ids", "repetition_detection", "thinking_token_budget", "vllm_xargs", "logits_processors", "reasoning", "processed_logprobs", "num_speculative_tokens", "routed_experts_prompt_start", "watermarking")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    N_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_DETECTION_FIELD_NUMBER: _ClassVar[int]
    THINKING_TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    VLLM_XARGS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    PROCESSED_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_SPECULATIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_PROMPT_START_FIELD_NUMBER: _ClassVar[int]
    WATERMARKING_FIELD_NUMBER: _ClassVar[int]
    n: int
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    logit_bias: _containers.ScalarMap[int, float]
    logprobs: int
    prompt_logprobs: int
    bad_words: _containers.RepeatedCompositeFieldContainer[TokenIds]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprob_token_ids: _containers.RepeatedScalarFieldContainer[int]
    repetition_detection: RepetitionDetection
    thinking_token_budget: int
    vllm_xargs: bytes
    logits_processors: _containers.RepeatedCompositeFieldContainer[LogitsProcessorCall]
    reasoning: ReasoningMarks
    processed_logprobs: bool
    num_speculative_tokens: int
    routed_experts_prompt_start: int
    watermarking: bool
    def __init__(self, n: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., seed: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., bad_words: _Optional[_Iterable[_Union[TokenIds, _Mapping]]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., logprob_token_ids: _Optional[_Iterable[int]] = ..., repetition_detection: _Optional[_Union[RepetitionDetection, _Mapping]] = ..., thinking_token_budget: _Optional[int] = ..., vllm_xargs: _Optional[bytes] = ..., logits_processors: _Optional[_Iterable[_Union[LogitsProcessorCall, _Mapping]]] = ..., reasoning: _Optional[_Union[ReasoningMarks, _Mapping]] = ..., processed_logprobs: _Optional[bool] = ..., num_speculative_tokens: _Optional[int] = ..., routed_experts_prompt_start: _Optional[int] = ..., watermarking: _Optional[bool] = ...) -> None: ...

class RepetitionDetection(_message.Message):
    __slots__ = ("max_pattern_size", "min_pattern_size", "min_count")
    MAX_PATTERN_SIZE_FIELD_NUMBER: _ClassVar[int]
    MIN_PATTERN_SIZE_FIELD_NUMBER: _ClassVar[int]
    MIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    max_pattern_size: int
    min_pattern_size: int
    min_count: int
    def __init__(self, max_pattern_size: _Optional[int] = ..., min_pattern_size: _Optional[int] = ..., min_count: _Optional[int] = ...) -> None: ...

class LogitsProcessorCall(_message.Message):
    __slots__ = ("qualname", "args", "kwargs")
    QUALNAME_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    KWARGS_FIELD_NUMBER: _ClassVar[int]
    qualname: str
    args: bytes
    kwargs: bytes
    def __init__(self, qualname: _Optional[str] = ..., args: _Optional[bytes] = ..., kwargs: _Optional[bytes] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("backend", "grammar", "key")
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    backend: str
    grammar: bytes
    key: str
    def __init__(self, backend: _Optional[str] = ..., grammar: _Optional[bytes] = ..., key: _Optional[str] = ...) -> None: ...

class ReasoningMarks(_message.Message):
    __slots__ = ("start_token_ids", "end_token_ids", "is_open", "is_optional", "blank_token_ids", "closing_token_ids")
    START_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IS_OPEN_FIELD_NUMBER: _ClassVar[int]
    IS_OPTIONAL_FIELD_NUMBER: _ClassVar[int]
    BLANK_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CLOSING_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    start_token_ids: _containers.RepeatedScalarFieldContainer[int]
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    is_open: bool
    is_optional: bool
    blank_token_ids: _containers.RepeatedScalarFieldContainer[int]
    closing_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, start_token_ids: _Optional[_Iterable[int]] = ..., end_token_ids: _Optional[_Iterable[int]] = ..., is_open: _Optional[bool] = ..., is_optional: _Optional[bool] = ..., blank_token_ids: _Optional[_Iterable[int]] = ..., closing_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class PoolingParameters(_message.Message):
    __slots__ = ("task", "dimensions", "normalize", "use_activation")
    TASK_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    USE_ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    task: PoolingTask
    dimensions: int
    normalize: bool
    use_activation: bool
    def __init__(self, task: _Optional[_Union[PoolingTask, str]] = ..., dimensions: _Optional[int] = ..., normalize: _Optional[bool] = ..., use_activation: _Optional[bool] = ...) -> None: ...

class PoolingInput(_message.Message):
    __slots__ = ("token_ids", "token_type_ids", "images")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TYPE_IDS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    token_type_ids: _containers.RepeatedScalarFieldContainer[int]
    images: _containers.RepeatedCompositeFieldContainer[Image]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., token_type_ids: _Optional[_Iterable[int]] = ..., images: _Optional[_Iterable[_Union[Image, _Mapping]]] = ...) -> None: ...

class PoolRequest(_message.Message):
    __slots__ = ("request_id", "model", "inputs", "parameters", "priority", "timeout_ms", "tenant", "tenant_weight")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TENANT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[PoolingInput]
    parameters: PoolingParameters
    priority: int
    timeout_ms: int
    tenant: str
    tenant_weight: float
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[PoolingInput, _Mapping]]] = ..., parameters: _Optional[_Union[PoolingParameters, _Mapping]] = ..., priority: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., tenant: _Optional[str] = ..., tenant_weight: _Optional[float] = ...) -> None: ...

class PoolingOutput(_message.Message):
    __slots__ = ("data", "shape", "num_tokens")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    shape: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: int
    def __init__(self, data: _Optional[bytes] = ..., shape: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class PoolResponse(_message.Message):
    __slots__ = ("outputs", "queue_seconds", "compute_seconds")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[PoolingOutput]
    queue_seconds: float
    compute_seconds: float
    def __init__(self, outputs: _Optional[_Iterable[_Union[PoolingOutput, _Mapping]]] = ..., queue_seconds: _Optional[float] = ..., compute_seconds: _Optional[float] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("token_ids", "logprobs", "rank")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    rank: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., rank: _Optional[int] = ...) -> None: ...

class GenerationDelta(_message.Message):
    __slots__ = ("stream_id", "choice_index", "token_ids", "logprobs", "prompt_logprobs", "finish_reason", "stop_token_id", "is_final", "usage", "error", "ended_by_constraint", "num_previous_tokens", "routed_experts", "sampling_masks", "weight_version")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ENDED_BY_CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    NUM_PREVIOUS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_MASKS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    choice_index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    finish_reason: FinishReason
    stop_token_id: int
    is_final: bool
    usage: GenerationUsage
    error: RequestError
    ended_by_constraint: bool
    num_previous_tokens: int
    routed_experts: _containers.RepeatedScalarFieldContainer[bytes]
    sampling_masks: _containers.RepeatedCompositeFieldContainer[TokenIds]
    weight_version: str
    def __init__(self, stream_id: _Optional[int] = ..., choice_index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., is_final: _Optional[bool] = ..., usage: _Optional[_Union[GenerationUsage, _Mapping]] = ..., error: _Optional[_Union[RequestError, _Mapping]] = ..., ended_by_constraint: _Optional[bool] = ..., num_previous_tokens: _Optional[int] = ..., routed_experts: _Optional[_Iterable[bytes]] = ..., sampling_masks: _Optional[_Iterable[_Union[TokenIds, _Mapping]]] = ..., weight_version: _Optional[str] = ...) -> None: ...

class GenerationUsage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_prompt_tokens", "queue_seconds", "prefill_seconds", "decode_seconds", "preemptions", "router_queue_seconds", "kv_source")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    ROUTER_QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KV_SOURCE_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    preemptions: int
    router_queue_seconds: float
    kv_source: str
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., queue_seconds: _Optional[float] = ..., prefill_seconds: _Optional[float] = ..., decode_seconds: _Optional[float] = ..., preemptions: _Optional[int] = ..., router_queue_seconds: _Optional[float] = ..., kv_source: _Optional[str] = ...) -> None: ...

class RequestError(_message.Message):
    __slots__ = ("code", "reason", "message", "parameter", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    parameter: str
    retry_after_ms: int
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., parameter: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class RoutedExpertsForm(_message.Message):
    __slots__ = ("num_layers", "experts_per_token", "id_bytes")
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ID_BYTES_FIELD_NUMBER: _ClassVar[int]
    num_layers: int
    experts_per_token: int
    id_bytes: int
    def __init__(self, num_layers: _Optional[int] = ..., experts_per_token: _Optional[int] = ..., id_bytes: _Optional[int] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("served_model_names", "model", "architecture", "max_model_len", "vocab_size", "dtype", "device", "block_size", "num_kv_blocks", "max_num_seqs", "max_num_batched_tokens", "eos_token_ids", "default_sampling", "max_logprobs", "tensor_parallel_size", "attention_backend", "scheduling_policy", "kv_cache_tokens", "fingerprint", "prompt_embeds_size", "batch_invariant", "cpu_kernels", "state_bytes", "adapters", "max_loras", "draft_cache_bytes", "runner", "pooling", "data_parallel_rank", "lockstep_ranks", "accepts_images", "accepts_videos", "accepts_audio", "num_snapshots", "num_host_blocks", "num_host_snapshots", "kv_role", "routed_experts", "kv_connector", "ec_role", "encoder_fingerprint", "model_type")
    SERVED_MODEL_NAMES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_BACKEND_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_POLICY_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_EMBEDS_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    CPU_KERNELS_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_LORAS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    DATA_PARALLEL_RANK_FIELD_NUMBER: _ClassVar[int]
    LOCKSTEP_RANKS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_IMAGES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_VIDEOS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_AUDIO_FIELD_NUMBER: _ClassVar[int]
    NUM_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    KV_ROLE_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    KV_CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    EC_ROLE_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_TYPE_FIELD_NUMBER: _ClassVar[int]
    served_model_names: _containers.RepeatedScalarFieldContainer[str]
    model: str
    architecture: str
    max_model_len: int
    vocab_size: int
    dtype: str
    device: str
    block_size: int
    num_kv_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    default_sampling: SamplingParams
    max_logprobs: int
    tensor_parallel_size: int
    attention_backend: str
    scheduling_policy: str
    kv_cache_tokens: int
    fingerprint: str
    prompt_embeds_size: int
    batch_invariant: bool
    cpu_kernels: str
    state_bytes: int
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterInfo]
    max_loras: int
    draft_cache_bytes: int
    runner: str
    pooling: PoolingInfo
    data_parallel_rank: int
    lockstep_ranks: int
    accepts_images: bool
    accepts_videos: bool
    accepts_audio: bool
    num_snapshots: int
    num_host_blocks: int
    num_host_snapshots: int
    kv_role: str
    routed_experts: RoutedExpertsForm
    kv_connector: str
    ec_role: str
    encoder_fingerprint: str
    model_type: str
    def __init__(self, served_model_names: _Optional[_Iterable[str]] = ..., model: _Optional[str] = ..., architecture: _Optional[str] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., block_size: _Optional[int] = ..., num_kv_blocks: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., default_sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., max_logprobs: _Optional[int] = ..., tensor_parallel_size: _Optional[int] = ..., attention_backend: _Optional[str] = ..., scheduling_policy: _Optional[str] = ..., kv_cache_tokens: _Optional[int] = ..., fingerprint: _Optional[str] = ..., prompt_embeds_size: _Optional[int] = ..., batch_invariant: _Optional[bool] = ..., cpu_kernels: _Optional[str] = ..., state_bytes: _Optional[int] = ..., adapters: _Optional[_Iterable[_Union[AdapterInfo, _Mapping]]] = ..., max_loras: _Optional[int] = ..., draft_cache_bytes: _Optional[int] = ..., runner: _Optional[str] = ..., pooling: _Optional[_Union[PoolingInfo, _Mapping]] = ..., data_parallel_rank: _Optional[int] = ..., lockstep_ranks: _Optional[int] = ..., accepts_images: _Optional[bool] = ..., accepts_videos: _Optional[bool] = ..., accepts_audio: _Optional[bool] = ..., num_snapshots: _Optional[int] = ..., num_host_blocks: _Optional[int] = ..., num_host_snapshots: _Optional[int] = ..., kv_role: _Optional[str] = ..., routed_experts: _Optional[_Union[RoutedExpertsForm, _Mapping]] = ..., kv_connector: _Optional[str] = ..., ec_role: _Optional[str] = ..., encoder_fingerprint: _Optional[str] = ..., model_type: _Optional[str] = ...) -> None: ...

class PoolingInfo(_message.Message):
    __slots__ = ("tasks", "embedding_size", "token_embedding_size", "is_matryoshka", "matryoshka_dimensions", "num_labels", "label_names", "is_cross_encoder", "is_late_interaction", "type_vocab_size", "pooling_type", "normalize", "use_activation", "max_inputs", "prompts", "default_prompt_name")
    class PromptsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TASKS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_EMBEDDING_SIZE_FIELD_NUMBER: _ClassVar[int]
    IS_MATRYOSHKA_FIELD_NUMBER: _ClassVar[int]
    MATRYOSHKA_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_LABELS_FIELD_NUMBER: _ClassVar[int]
    LABEL_NAMES_FIELD_NUMBER: _ClassVar[int]
    IS_CROSS_ENCODER_FIELD_NUMBER: _ClassVar[int]
    IS_LATE_INTERACTION_FIELD_NUMBER: _ClassVar[int]
    TYPE_VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    POOLING_TYPE_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    USE_ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    MAX_INPUTS_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedScalarFieldContainer[PoolingTask]
    embedding_size: int
    token_embedding_size: int
    is_matryoshka: bool
    matryoshka_dimensions: _containers.RepeatedScalarFieldContainer[int]
    num_labels: int
    label_names: _containers.RepeatedScalarFieldContainer[str]
    is_cross_encoder: bool
    is_late_interaction: bool
    type_vocab_size: int
    pooling_type: str
    normalize: bool
    use_activation: bool
    max_inputs: int
    prompts: _containers.ScalarMap[str, str]
    default_prompt_name: str
    def __init__(self, tasks: _Optional[_Iterable[_Union[PoolingTask, str]]] = ..., embedding_size: _Optional[int] = ..., token_embedding_size: _Optional[int] = ..., is_matryoshka: _Optional[bool] = ..., matryoshka_dimensions: _Optional[_Iterable[int]] = ..., num_labels: _Optional[int] = ..., label_names: _Optional[_Iterable[str]] = ..., is_cross_encoder: _Optional[bool] = ..., is_late_interaction: _Optional[bool] = ..., type_vocab_size: _Optional[int] = ..., pooling_type: _Optional[str] = ..., normalize: _Optional[bool] = ..., use_activation: _Optional[bool] = ..., max_inputs: _Optional[int] = ..., prompts: _Optional[_Mapping[str, str]] = ..., default_prompt_name: _Optional[str] = ...) -> None: ...

class AdapterInfo(_message.Message):
    __slots__ = ("name", "path", "revision", "rank", "base_model_name", "is_default")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    revision: str
    rank: int
    base_model_name: str
    is_default: bool
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., revision: _Optional[str] = ..., rank: _Optional[int] = ..., base_model_name: _Optional[str] = ..., is_default: _Optional[bool] = ...) -> None: ...

class EngineLoad(_message.Message):
    __slots__ = ("running_sequences", "waiting_requests", "used_kv_blocks", "total_kv_blocks", "waiting_prefill_tokens", "step", "busy", "counters", "swapped_sequences", "used_host_blocks", "total_host_blocks", "adapters_version", "adapters", "status")
    RUNNING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    USED_KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WAITING_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    USED_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    running_sequences: int
    waiting_requests: int
    used_kv_blocks: int
    total_kv_blocks: int
    waiting_prefill_tokens: int
    step: int
    busy: bool
    counters: EngineCounters
    swapped_sequences: int
    used_host_blocks: int
    total_host_blocks: int
    adapters_version: int
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterLoad]
    status: EngineStatus
    def __init__(self, running_sequences: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., used_kv_blocks: _Optional[int] = ..., total_kv_blocks: _Optional[int] = ..., waiting_prefill_tokens: _Optional[int] = ..., step: _Optional[int] = ..., busy: _Optional[bool] = ..., counters: _Optional[_Union[EngineCounters, _Mapping]] = ..., swapped_sequences: _Optional[int] = ..., used_host_blocks: _Optional[int] = ..., total_host_blocks: _Optional[int] = ..., adapters_version: _Optional[int] = ..., adapters: _Optional[_Iterable[_Union[AdapterLoad, _Mapping]]] = ..., status: _Optional[_Union[EngineStatus, _Mapping]] = ...) -> None: ...

class EngineStatus(_message.Message):
    __slots__ = ("is_draining", "is_paused", "sleep_level", "asleep", "is_profiling", "weight_version")
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    IS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    SLEEP_LEVEL_FIELD_NUMBER: _ClassVar[int]
    ASLEEP_FIELD_NUMBER: _ClassVar[int]
    IS_PROFILING_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    is_draining: bool
    is_paused: bool
    sleep_level: int
    asleep: _containers.RepeatedScalarFieldContainer[str]
    is_profiling: bool
    weight_version: str
    def __init__(self, is_draining: _Optional[bool] = ..., is_paused: _Optional[bool] = ..., sleep_level: _Optional[int] = ..., asleep: _Optional[_Iterable[str]] = ..., is_profiling: _Optional[bool] = ..., weight_version: _Optional[str] = ...) -> None: ...

class AdapterLoad(_message.Message):
    __slots__ = ("name", "on_device", "running_sequences", "waiting_sequences")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ON_DEVICE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    WAITING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    name: str
    on_device: bool
    running_sequences: int
    waiting_sequences: int
    def __init__(self, name: _Optional[str] = ..., on_device: _Optional[bool] = ..., running_sequences: _Optional[int] = ..., waiting_sequences: _Optional[int] = ...) -> None: ...

class EngineCounters(_message.Message):
    __slots__ = ("prompt_tokens", "generation_tokens", "preemptions", "prefix_cache_queries", "prefix_cache_hits", "iteration_tokens", "model_forward_milliseconds", "model_execute_milliseconds", "computed_tokens", "external_cache_queries", "external_cache_hits", "draft_tokens", "draft_emitted_tokens", "draft_accepted_tokens", "draft_failures", "dual_batch_steps", "host_cache_hits", "host_saved_bytes", "host_loaded_bytes", "storage_saved_bytes", "storage_loaded_bytes", "encoded_media", "pulled_media", "failed_media_pulls")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    ITERATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FORWARD_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_EXECUTE_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_CACHE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_EMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FAILURES_FIELD_NUMBER: _ClassVar[int]
    DUAL_BATCH_STEPS_FIELD_NUMBER: _ClassVar[int]
    HOST_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    HOST_SAVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_LOADED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_SAVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_LOADED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENCODED_MEDIA_FIELD_NUMBER: _ClassVar[int]
    PULLED_MEDIA_FIELD_NUMBER: _ClassVar[int]
    FAILED_MEDIA_PULLS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    generation_tokens: int
    preemptions: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    iteration_tokens: Histogram
    model_forward_milliseconds: Histogram
    model_execute_milliseconds: Histogram
    computed_tokens: int
    external_cache_queries: int
    external_cache_hits: int
    draft_tokens: int
    draft_emitted_tokens: int
    draft_accepted_tokens: Histogram
    draft_failures: int
    dual_batch_steps: int
    host_cache_hits: int
    host_saved_bytes: int
    host_loaded_bytes: int
    storage_saved_bytes: int
    storage_loaded_bytes: int
    encoded_media: int
    pulled_media: int
    failed_media_pulls: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., generation_tokens: _Optional[int] = ..., preemptions: _Optional[int] = ..., prefix_cache_queries: _Optional[int] = ..., prefix_cache_hits: _Optional[int] = ..., iteration_tokens: _Optional[_Union[Histogram, _Mapping]] = ..., model_forward_milliseconds: _Optional[_Union[Histogram, _Mapping]] = ..., model_execute_milliseconds: _Optional[_Union[Histogram, _Mapping]] = ..., computed_tokens: _Optional[int] = ..., external_cache_queries: _Optional[int] = ..., external_cache_hits: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., draft_emitted_tokens: _Optional[int] = ..., draft_accepted_tokens: _Optional[_Union[Histogram, _Mapping]] = ..., draft_failures: _Optional[int] = ..., dual_batch_steps: _Optional[int] = ..., host_cache_hits: _Optional[int] = ..., host_saved_bytes: _Optional[int] = ..., host_loaded_bytes: _Optional[int] = ..., storage_saved_bytes: _Optional[int] = ..., storage_loaded_bytes: _Optional[int] = ..., encoded_media: _Optional[int] = ..., pulled_media: _Optional[int] = ..., failed_media_pulls: _Optional[int] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("bounds", "counts", "sum")
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum: float
    def __init__(self, bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., sum: _Optional[float] = ...) -> None: ...
