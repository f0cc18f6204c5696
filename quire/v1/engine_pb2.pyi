from quire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CacheTier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CACHE_TIER_UNSPECIFIED: _ClassVar[CacheTier]
    CACHE_TIER_DEVICE: _ClassVar[CacheTier]
    CACHE_TIER_HOST: _ClassVar[CacheTier]
CACHE_TIER_UNSPECIFIED: CacheTier
CACHE_TIER_DEVICE: CacheTier
CACHE_TIER_HOST: CacheTier

class EngineServiceGenerateRequest(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: _common_pb2.Generation
    def __init__(self, generation: _Optional[_Union[_common_pb2.Generation, _Mapping]] = ...) -> None: ...

class EngineServiceGenerateResponse(_message.Message):
    __slots__ = ("delta",)
    DELTA_FIELD_NUMBER: _ClassVar[int]
    delta: _common_pb2.GenerationDelta
    def __init__(self, delta: _Optional[_Union[_common_pb2.GenerationDelta, _Mapping]] = ...) -> None: ...

class EngineServiceSessionRequest(_message.Message):
    __slots__ = ("starts", "abort_stream_ids", "stops", "appends")
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ABORT_STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    APPENDS_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedCompositeFieldContainer[SessionStart]
    abort_stream_ids: _containers.RepeatedScalarFieldContainer[int]
    stops: _containers.RepeatedCompositeFieldContainer[SequenceStop]
    appends: _containers.RepeatedCompositeFieldContainer[AudioAppend]
    def __init__(self, starts: _Optional[_Iterable[_Union[SessionStart, _Mapping]]] = ..., abort_stream_ids: _Optional[_Iterable[int]] = ..., stops: _Optional[_Iterable[_Union[SequenceStop, _Mapping]]] = ..., appends: _Optional[_Iterable[_Union[AudioAppend, _Mapping]]] = ...) -> None: ...

class AudioAppend(_message.Message):
    __slots__ = ("stream_id", "audio", "is_last")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    audio: _common_pb2.Image
    is_last: bool
    def __init__(self, stream_id: _Optional[int] = ..., audio: _Optional[_Union[_common_pb2.Image, _Mapping]] = ..., is_last: _Optional[bool] = ...) -> None: ...

class SequenceStop(_message.Message):
    __slots__ = ("stream_id", "choice_index", "num_output_tokens")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    choice_index: int
    num_output_tokens: int
    def __init__(self, stream_id: _Optional[int] = ..., choice_index: _Optional[int] = ..., num_output_tokens: _Optional[int] = ...) -> None: ...

class SessionStart(_message.Message):
    __slots__ = ("stream_id", "generation", "hands_over")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HANDS_OVER_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    generation: _common_pb2.Generation
    hands_over: bool
    def __init__(self, stream_id: _Optional[int] = ..., generation: _Optional[_Union[_common_pb2.Generation, _Mapping]] = ..., hands_over: _Optional[bool] = ...) -> None: ...

class EngineServiceSessionResponse(_message.Message):
    __slots__ = ("deltas", "load")
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[_common_pb2.GenerationDelta]
    load: _common_pb2.EngineLoad
    def __init__(self, deltas: _Optional[_Iterable[_Union[_common_pb2.GenerationDelta, _Mapping]]] = ..., load: _Optional[_Union[_common_pb2.EngineLoad, _Mapping]] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("aborted",)
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    aborted: int
    def __init__(self, aborted: _Optional[int] = ...) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelInfoResponse(_message.Message):
    __slots__ = ("model_info",)
    MODEL_INFO_FIELD_NUMBER: _ClassVar[int]
    model_info: _common_pb2.ModelInfo
    def __init__(self, model_info: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("load",)
    LOAD_FIELD_NUMBER: _ClassVar[int]
    load: _common_pb2.EngineLoad
    def __init__(self, load: _Optional[_Union[_common_pb2.EngineLoad, _Mapping]] = ...) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("name", "path", "base_model_name", "in_place")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    IN_PLACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    base_model_name: str
    in_place: bool
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., base_model_name: _Optional[str] = ..., in_place: _Optional[bool] = ...) -> None: ...

class LoadAdapterResponse(_message.Message):
    __slots__ = ("adapter",)
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    adapter: _common_pb2.AdapterInfo
    def __init__(self, adapter: _Optional[_Union[_common_pb2.AdapterInfo, _Mapping]] = ...) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("name", "wait_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    wait_ms: int
    def __init__(self, name: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class UnloadAdapterResponse(_message.Message):
    __slots__ = ("live_requests",)
    LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    live_requests: int
    def __init__(self, live_requests: _Optional[int] = ...) -> None: ...

class SubscribeKvEventsRequest(_message.Message):
    __slots__ = ("from_sequence", "epoch")
    FROM_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    from_sequence: int
    epoch: str
    def __init__(self, from_sequence: _Optional[int] = ..., epoch: _Optional[str] = ...) -> None: ...

class SubscribeKvEventsResponse(_message.Message):
    __slots__ = ("sequence", "is_snapshot", "events", "epoch", "snapshot_continues", "device", "host", "first_sequence")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    IS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_CONTINUES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    is_snapshot: bool
    events: _containers.RepeatedCompositeFieldContainer[KvEvent]
    epoch: str
    snapshot_continues: bool
    device: CacheDigest
    host: CacheDigest
    first_sequence: int
    def __init__(self, sequence: _Optional[int] = ..., is_snapshot: _Optional[bool] = ..., events: _Optional[_Iterable[_Union[KvEvent, _Mapping]]] = ..., epoch: _Optional[str] = ..., snapshot_continues: _Optional[bool] = ..., device: _Optional[_Union[CacheDigest, _Mapping]] = ..., host: _Optional[_Union[CacheDigest, _Mapping]] = ..., first_sequence: _Optional[int] = ...) -> None: ...

class PullKvBlocksRequest(_message.Message):
    __slots__ = ("fingerprint", "blocks", "num_ranks")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_RANKS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    blocks: _containers.RepeatedCompositeFieldContainer[KvBlockName]
    num_ranks: int
    def __init__(self, fingerprint: _Optional[str] = ..., blocks: _Optional[_Iterable[_Union[KvBlockName, _Mapping]]] = ..., num_ranks: _Optional[int] = ...) -> None: ...

class KvBlockName(_message.Message):
    __slots__ = ("block_hash", "group")
    BLOCK_HASH_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    block_hash: bytes
    group: int
    def __init__(self, block_hash: _Optional[bytes] = ..., group: _Optional[int] = ...) -> None: ...

class PullKvBlocksResponse(_message.Message):
    __slots__ = ("block_index", "rank", "data", "is_last")
    BLOCK_INDEX_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    block_index: int
    rank: int
    data: bytes
    is_last: bool
    def __init__(self, block_index: _Optional[int] = ..., rank: _Optional[int] = ..., data: _Optional[bytes] = ..., is_last: _Optional[bool] = ...) -> None: ...

class EncodeMediaRequest(_message.Message):
    __slots__ = ("encoder_fingerprint", "image")
    ENCODER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    encoder_fingerprint: str
    image: _common_pb2.Image
    def __init__(self, encoder_fingerprint: _Optional[str] = ..., image: _Optional[_Union[_common_pb2.Image, _Mapping]] = ...) -> None: ...

class EncodeMediaResponse(_message.Message):
    __slots__ = ("form", "data")
    FORM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    form: EncodedMedia
    data: bytes
    def __init__(self, form: _Optional[_Union[EncodedMedia, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class EncodedMedia(_message.Message):
    __slots__ = ("dtype", "num_rows", "hidden_size", "num_deep", "kept", "both_ways")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_DEEP_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    BOTH_WAYS_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    num_rows: int
    hidden_size: int
    num_deep: int
    kept: _containers.RepeatedScalarFieldContainer[int]
    both_ways: bool
    def __init__(self, dtype: _Optional[str] = ..., num_rows: _Optional[int] = ..., hidden_size: _Optional[int] = ..., num_deep: _Optional[int] = ..., kept: _Optional[_Iterable[int]] = ..., both_ways: _Optional[bool] = ...) -> None: ...

class CacheDigest(_message.Message):
    __slots__ = ("num_blocks", "keys_xor")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KEYS_XOR_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    keys_xor: int
    def __init__(self, num_blocks: _Optional[int] = ..., keys_xor: _Optional[int] = ...) -> None: ...

class KvEvent(_message.Message):
    __slots__ = ("stored", "removed", "cleared")
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    stored: KvBlocksStored
    removed: KvBlocksRemoved
    cleared: KvCacheCleared
    def __init__(self, stored: _Optional[_Union[KvBlocksStored, _Mapping]] = ..., removed: _Optional[_Union[KvBlocksRemoved, _Mapping]] = ..., cleared: _Optional[_Union[KvCacheCleared, _Mapping]] = ...) -> None: ...

class KvBlocksStored(_message.Message):
    __slots__ = ("block_keys", "parent_block_key", "block_size", "tier")
    BLOCK_KEYS_FIELD_NUMBER: _ClassVar[int]
    PARENT_BLOCK_KEY_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    block_keys: _containers.RepeatedScalarFieldContainer[int]
    parent_block_key: int
    block_size: int
    tier: CacheTier
    def __init__(self, block_keys: _Optional[_Iterable[int]] = ..., parent_block_key: _Optional[int] = ..., block_size: _Optional[int] = ..., tier: _Optional[_Union[CacheTier, str]] = ...) -> None: ...

class KvBlocksRemoved(_message.Message):
    __slots__ = ("block_keys", "tier")
    BLOCK_KEYS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    block_keys: _containers.RepeatedScalarFieldContainer[int]
    tier: CacheTier
    def __init__(self, block_keys: _Optional[_Iterable[int]] = ..., tier: _Optional[_Union[CacheTier, str]] = ...) -> None: ...

class KvCacheCleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
