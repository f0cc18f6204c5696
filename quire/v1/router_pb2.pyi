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
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_STARTING: WorkerState
WORKER_STATE_READY: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_UNREACHABLE: WorkerState

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
    __slots__ = ("starts", "abort_stream_ids")
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ABORT_STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedCompositeFieldContainer[_engine_pb2.SessionStart]
    abort_stream_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, starts: _Optional[_Iterable[_Union[_engine_pb2.SessionStart, _Mapping]]] = ..., abort_stream_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RouterServiceSessionResponse(_message.Message):
    __slots__ = ("deltas", "load")
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[_common_pb2.GenerationDelta]
    load: _common_pb2.EngineLoad
    def __init__(self, deltas: _Optional[_Iterable[_Union[_common_pb2.GenerationDelta, _Mapping]]] = ..., load: _Optional[_Union[_common_pb2.EngineLoad, _Mapping]] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    def __init__(self, workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("address", "state", "model_info", "load", "inflight_requests", "reason")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_INFO_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    address: str
    state: WorkerState
    model_info: _common_pb2.ModelInfo
    load: _common_pb2.EngineLoad
    inflight_requests: int
    reason: str
    def __init__(self, address: _Optional[str] = ..., state: _Optional[_Union[WorkerState, str]] = ..., model_info: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., load: _Optional[_Union[_common_pb2.EngineLoad, _Mapping]] = ..., inflight_requests: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

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
