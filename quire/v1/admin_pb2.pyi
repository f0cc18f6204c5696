from quire.v1 import common_pb2 as _common_pb2
from quire.v1 import engine_pb2 as _engine_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Leaving(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEAVING_UNSPECIFIED: _ClassVar[Leaving]
    LEAVING_ABORT: _ClassVar[Leaving]
    LEAVING_WAIT: _ClassVar[Leaving]
    LEAVING_KEEP: _ClassVar[Leaving]
LEAVING_UNSPECIFIED: Leaving
LEAVING_ABORT: Leaving
LEAVING_WAIT: Leaving
LEAVING_KEEP: Leaving

class EngineAdminServiceAdministerRequest(_message.Message):
    __slots__ = ("command",)
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    command: AdminCommand
    def __init__(self, command: _Optional[_Union[AdminCommand, _Mapping]] = ...) -> None: ...

class EngineAdminServiceAdministerResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: AdminOutcome
    def __init__(self, outcome: _Optional[_Union[AdminOutcome, _Mapping]] = ...) -> None: ...

class RouterAdminServiceAdministerRequest(_message.Message):
    __slots__ = ("command", "workers")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    command: AdminCommand
    workers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, command: _Optional[_Union[AdminCommand, _Mapping]] = ..., workers: _Optional[_Iterable[str]] = ...) -> None: ...

class RouterAdminServiceAdministerResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerOutcome]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerOutcome, _Mapping]]] = ...) -> None: ...

class WorkerOutcome(_message.Message):
    __slots__ = ("address", "outcome", "error")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    address: str
    outcome: AdminOutcome
    error: _common_pb2.RequestError
    def __init__(self, address: _Optional[str] = ..., outcome: _Optional[_Union[AdminOutcome, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.RequestError, _Mapping]] = ...) -> None: ...

class AdminOutcome(_message.Message):
    __slots__ = ("status", "aborted_requests", "files", "num_ranks", "digests")
    class DigestsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ABORTED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    NUM_RANKS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    status: _common_pb2.EngineStatus
    aborted_requests: int
    files: _containers.RepeatedScalarFieldContainer[str]
    num_ranks: int
    digests: _containers.ScalarMap[str, str]
    def __init__(self, status: _Optional[_Union[_common_pb2.EngineStatus, _Mapping]] = ..., aborted_requests: _Optional[int] = ..., files: _Optional[_Iterable[str]] = ..., num_ranks: _Optional[int] = ..., digests: _Optional[_Mapping[str, str]] = ...) -> None: ...

class AdminCommand(_message.Message):
    __slots__ = ("reset_prefix_cache", "pause", "resume", "sleep", "wake_up", "drain", "undrain", "abort", "start_profile", "stop_profile", "reset_encoder_cache", "update_weights", "join_trainer", "start_weight_update", "receive_weights", "finish_weight_update", "name_weights", "release_cache", "digest_weights")
    RESET_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    SLEEP_FIELD_NUMBER: _ClassVar[int]
    WAKE_UP_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    UNDRAIN_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    START_PROFILE_FIELD_NUMBER: _ClassVar[int]
    STOP_PROFILE_FIELD_NUMBER: _ClassVar[int]
    RESET_ENCODER_CACHE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    JOIN_TRAINER_FIELD_NUMBER: _ClassVar[int]
    START_WEIGHT_UPDATE_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    FINISH_WEIGHT_UPDATE_FIELD_NUMBER: _ClassVar[int]
    NAME_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_CACHE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    reset_prefix_cache: ResetPrefixCache
    pause: Pause
    resume: Resume
    sleep: Sleep
    wake_up: WakeUp
    drain: Drain
    undrain: Undrain
    abort: _engine_pb2.AbortRequest
    start_profile: StartProfile
    stop_profile: StopProfile
    reset_encoder_cache: ResetEncoderCache
    update_weights: UpdateWeights
    join_trainer: JoinTrainer
    start_weight_update: StartWeightUpdate
    receive_weights: ReceiveWeights
    finish_weight_update: FinishWeightUpdate
    name_weights: NameWeights
    release_cache: ReleaseCache
    digest_weights: DigestWeights
    def __init__(self, reset_prefix_cache: _Optional[_Union[ResetPrefixCache, _Mapping]] = ..., pause: _Optional[_Union[Pause, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., sleep: _Optional[_Union[Sleep, _Mapping]] = ..., wake_up: _Optional[_Union[WakeUp, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., undrain: _Optional[_Union[Undrain, _Mapping]] = ..., abort: _Optional[_Union[_engine_pb2.AbortRequest, _Mapping]] = ..., start_profile: _Optional[_Union[StartProfile, _Mapping]] = ..., stop_profile: _Optional[_Union[StopProfile, _Mapping]] = ..., reset_encoder_cache: _Optional[_Union[ResetEncoderCache, _Mapping]] = ..., update_weights: _Optional[_Union[UpdateWeights, _Mapping]] = ..., join_trainer: _Optional[_Union[JoinTrainer, _Mapping]] = ..., start_weight_update: _Optional[_Union[StartWeightUpdate, _Mapping]] = ..., receive_weights: _Optional[_Union[ReceiveWeights, _Mapping]] = ..., finish_weight_update: _Optional[_Union[FinishWeightUpdate, _Mapping]] = ..., name_weights: _Optional[_Union[NameWeights, _Mapping]] = ..., release_cache: _Optional[_Union[ReleaseCache, _Mapping]] = ..., digest_weights: _Optional[_Union[DigestWeights, _Mapping]] = ...) -> None: ...

class ResetPrefixCache(_message.Message):
    __slots__ = ("preempts_running",)
    PREEMPTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    preempts_running: bool
    def __init__(self, preempts_running: _Optional[bool] = ...) -> None: ...

class ResetEncoderCache(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Pause(_message.Message):
    __slots__ = ("leaving", "wait_ms", "clears_cache")
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    CLEARS_CACHE_FIELD_NUMBER: _ClassVar[int]
    leaving: Leaving
    wait_ms: int
    clears_cache: bool
    def __init__(self, leaving: _Optional[_Union[Leaving, str]] = ..., wait_ms: _Optional[int] = ..., clears_cache: _Optional[bool] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Sleep(_message.Message):
    __slots__ = ("level", "leaving", "wait_ms")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    level: int
    leaving: Leaving
    wait_ms: int
    def __init__(self, level: _Optional[int] = ..., leaving: _Optional[_Union[Leaving, str]] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class WakeUp(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, parts: _Optional[_Iterable[str]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Undrain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UpdateWeights(_message.Message):
    __slots__ = ("model_path", "weight_version", "leaving", "wait_ms")
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    model_path: str
    weight_version: str
    leaving: Leaving
    wait_ms: int
    def __init__(self, model_path: _Optional[str] = ..., weight_version: _Optional[str] = ..., leaving: _Optional[_Union[Leaving, str]] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class JoinTrainer(_message.Message):
    __slots__ = ("master_address", "master_port", "first_rank", "world_size", "wait_ms", "packing")
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    FIRST_RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    PACKING_FIELD_NUMBER: _ClassVar[int]
    master_address: str
    master_port: int
    first_rank: int
    world_size: int
    wait_ms: int
    packing: Packing
    def __init__(self, master_address: _Optional[str] = ..., master_port: _Optional[int] = ..., first_rank: _Optional[int] = ..., world_size: _Optional[int] = ..., wait_ms: _Optional[int] = ..., packing: _Optional[_Union[Packing, _Mapping]] = ...) -> None: ...

class Packing(_message.Message):
    __slots__ = ("is_packed", "buffer_bytes")
    IS_PACKED_FIELD_NUMBER: _ClassVar[int]
    BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    is_packed: bool
    buffer_bytes: int
    def __init__(self, is_packed: _Optional[bool] = ..., buffer_bytes: _Optional[int] = ...) -> None: ...

class StartWeightUpdate(_message.Message):
    __slots__ = ("of_draft",)
    OF_DRAFT_FIELD_NUMBER: _ClassVar[int]
    of_draft: bool
    def __init__(self, of_draft: _Optional[bool] = ...) -> None: ...

class ReceiveWeights(_message.Message):
    __slots__ = ("tensors", "wait_ms", "packing")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    PACKING_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[SentTensor]
    wait_ms: int
    packing: Packing
    def __init__(self, tensors: _Optional[_Iterable[_Union[SentTensor, _Mapping]]] = ..., wait_ms: _Optional[int] = ..., packing: _Optional[_Union[Packing, _Mapping]] = ...) -> None: ...

class SentTensor(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class FinishWeightUpdate(_message.Message):
    __slots__ = ("weight_version", "leaving", "wait_ms")
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    weight_version: str
    leaving: Leaving
    wait_ms: int
    def __init__(self, weight_version: _Optional[str] = ..., leaving: _Optional[_Union[Leaving, str]] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class NameWeights(_message.Message):
    __slots__ = ("weight_version",)
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    weight_version: str
    def __init__(self, weight_version: _Optional[str] = ...) -> None: ...

class DigestWeights(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseCache(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartProfile(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopProfile(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
