from quire.v1 import common_pb2 as _common_pb2
from quire.v1 import engine_pb2 as _engine_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_STARTING: _ClassVar[WorkerState]
    WORKER_STATE_READY: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
    WORKER_STATE_UNREACHABLE: _ClassVar[WorkerState]
    WORKER_STATE_EJECTED: _ClassVar[WorkerState]
    WORKER_STATE_PAUSED: _ClassVar[WorkerState]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_STARTING: WorkerState
WORKER_STATE_READY: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_UNREACHABLE: WorkerState
WORKER_STATE_EJECTED: WorkerState
WORKER_STATE_PAUSED: WorkerState

class RouterServiceGenerateRequest(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: _common_pb2.Generation
    def __init__(self, generation: _Optional[_Union[_common_pb2.Generation, _Mapping]] = ...) -> None: ...

class RouterServiceGenerateResponse(_message.Message):
    __slots__ = ("delta",)
    DELTA_FIELD_NUMBER: _ClassVar[int]
    delta: _common_pb2.GenerationDelta
    def __init__(self, delta: _Optional[_Union[_common_pb2.GenerationDelta, _Mapping]] = ...) -> None: ...

class RouterServiceSessionRequest(_message.Message):
    __slots__ = ("starts", "abort_stream_ids", "stops", "appends")
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ABORT_STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    APPENDS_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedCompositeFieldContainer[_engine_pb2.SessionStart]
    abort_stream_ids: _containers.RepeatedScalarFieldContainer[int]
    stops: _containers.RepeatedCompositeFieldContainer[_engine_pb2.SequenceStop]
    appends: _containers.RepeatedCompositeFieldContainer[_engine_pb2.AudioAppend]
    def __init__(self, starts: _Optional[_Iterable[_Union[_engine_pb2.SessionStart, _Mapping]]] = ..., abort_stream_ids: _Optional[_Iterable[int]] = ..., stops: _Optional[_Iterable[_Union[_engine_pb2.SequenceStop, _Mapping]]] = ..., appends: _Optional[_Iterable[_Union[_engine_pb2.AudioAppend, _Mapping]]] = ...) -> None: ...

class RouterServiceSessionResponse(_message.Message):
    __slots__ = ("deltas", "ready_workers", "queues", "draining")
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    READY_WORKERS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[_common_pb2.GenerationDelta]
    ready_workers: int
    queues: _containers.RepeatedCompositeFieldContainer[ModelQueue]
    draining: bool
    def __init__(self, deltas: _Optional[_Iterable[_Union[_common_pb2.GenerationDelta, _Mapping]]] = ..., ready_workers: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[ModelQueue, _Mapping]]] = ..., draining: _Optional[bool] = ...) -> None: ...

class ModelQueue(_message.Message):
    __slots__ = ("model", "requests")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    requests: int
    def __init__(self, model: _Optional[str] = ..., requests: _Optional[int] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers", "aliases")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    aliases: _containers.RepeatedCompositeFieldContainer[ModelAlias]
    def __init__(self, workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ..., aliases: _Optional[_Iterable[_Union[ModelAlias, _Mapping]]] = ...) -> None: ...

class ModelAlias(_message.Message):
    __slots__ = ("name", "models")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    models: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("address", "state", "model_info", "load", "inflight_requests", "reason", "cached_blocks", "host_cached_blocks", "prefill_tokens_per_second", "seconds_per_step", "prompt_tokens", "cached_prompt_tokens")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_INFO_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HOST_CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SECONDS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    address: str
    state: WorkerState
    model_info: _common_pb2.ModelInfo
    load: _common_pb2.EngineLoad
    inflight_requests: int
    reason: str
    cached_blocks: int
    host_cached_blocks: int
    prefill_tokens_per_second: float
    seconds_per_step: float
    prompt_tokens: int
    cached_prompt_tokens: int
    def __init__(self, address: _Optional[str] = ..., state: _Optional[_Union[WorkerState, str]] = ..., model_info: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., load: _Optional[_Union[_common_pb2.EngineLoad, _Mapping]] = ..., inflight_requests: _Optional[int] = ..., reason: _Optional[str] = ..., cached_blocks: _Optional[int] = ..., host_cached_blocks: _Optional[int] = ..., prefill_tokens_per_second: _Optional[float] = ..., seconds_per_step: _Optional[float] = ..., prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ...) -> None: ...

class RegisterWorkerRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class RegisterWorkerResponse(_message.Message):
    __slots__ = ("lease_id", "lease_ms")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    lease_ms: int
    def __init__(self, lease_id: _Optional[str] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    def __init__(self, lease_id: _Optional[str] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("lease_ms",)
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    lease_ms: int
    def __init__(self, lease_ms: _Optional[int] = ...) -> None: ...

class SetWorkersRequest(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class SetWorkersResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExplainPlacementRequest(_message.Message):
    __slots__ = ("request_id", "weights")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    weights: PlacementWeights
    def __init__(self, request_id: _Optional[str] = ..., weights: _Optional[_Union[PlacementWeights, _Mapping]] = ...) -> None: ...

class PlacementWeights(_message.Message):
    __slots__ = ("host_tier", "interference", "temperature")
    HOST_TIER_FIELD_NUMBER: _ClassVar[int]
    INTERFERENCE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    host_tier: float
    interference: float
    temperature: float
    def __init__(self, host_tier: _Optional[float] = ..., interference: _Optional[float] = ..., temperature: _Optional[float] = ...) -> None: ...

class ExplainPlacementResponse(_message.Message):
    __slots__ = ("request_id", "time_seconds", "policy", "attempt", "decision_microseconds", "queued_seconds", "prompt_tokens", "candidates", "chosen", "would_choose")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DECISION_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    WOULD_CHOOSE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    time_seconds: float
    policy: str
    attempt: int
    decision_microseconds: float
    queued_seconds: float
    prompt_tokens: int
    candidates: _containers.RepeatedCompositeFieldContainer[PlacementCandidate]
    chosen: str
    would_choose: str
    def __init__(self, request_id: _Optional[str] = ..., time_seconds: _Optional[float] = ..., policy: _Optional[str] = ..., attempt: _Optional[int] = ..., decision_microseconds: _Optional[float] = ..., queued_seconds: _Optional[float] = ..., prompt_tokens: _Optional[int] = ..., candidates: _Optional[_Iterable[_Union[PlacementCandidate, _Mapping]]] = ..., chosen: _Optional[str] = ..., would_choose: _Optional[str] = ...) -> None: ...

class PlacementCandidate(_message.Message):
    __slots__ = ("address", "cached_tokens", "host_cached_tokens", "waiting_prefill_tokens", "sequences", "kv_usage", "cost_seconds", "cost_with_weights_seconds")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HOST_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAITING_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    COST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COST_WITH_WEIGHTS_SECONDS_FIELD_NUMBER: _ClassVar[int]
    address: str
    cached_tokens: int
    host_cached_tokens: int
    waiting_prefill_tokens: int
    sequences: int
    kv_usage: float
    cost_seconds: float
    cost_with_weights_seconds: float
    def __init__(self, address: _Optional[str] = ..., cached_tokens: _Optional[int] = ..., host_cached_tokens: _Optional[int] = ..., waiting_prefill_tokens: _Optional[int] = ..., sequences: _Optional[int] = ..., kv_usage: _Optional[float] = ..., cost_seconds: _Optional[float] = ..., cost_with_weights_seconds: _Optional[float] = ...) -> None: ...
