from quire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConversationForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONVERSATION_FORM_CHAT: _ClassVar[ConversationForm]
    CONVERSATION_FORM_PAIR: _ClassVar[ConversationForm]
    CONVERSATION_FORM_CONTENTS: _ClassVar[ConversationForm]
CONVERSATION_FORM_CHAT: ConversationForm
CONVERSATION_FORM_PAIR: ConversationForm
CONVERSATION_FORM_CONTENTS: ConversationForm

class EncodeRequest(_message.Message):
    __slots__ = ("texts", "add_special_tokens", "block_size", "cache_salt", "max_tokens", "suffix", "adapter", "truncation", "return_token_offsets")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    add_special_tokens: bool
    block_size: int
    cache_salt: str
    max_tokens: int
    suffix: str
    adapter: str
    truncation: Truncation
    return_token_offsets: bool
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., add_special_tokens: _Optional[bool] = ..., block_size: _Optional[int] = ..., cache_salt: _Optional[str] = ..., max_tokens: _Optional[int] = ..., suffix: _Optional[str] = ..., adapter: _Optional[str] = ..., truncation: _Optional[_Union[Truncation, _Mapping]] = ..., return_token_offsets: _Optional[bool] = ...) -> None: ...

class Truncation(_message.Message):
    __slots__ = ("num_tokens", "keeps_end")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEEPS_END_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    keeps_end: bool
    def __init__(self, num_tokens: _Optional[int] = ..., keeps_end: _Optional[bool] = ...) -> None: ...

class EncodePairsRequest(_message.Message):
    __slots__ = ("first_texts", "second_texts", "max_tokens", "truncation", "max_first_tokens", "max_second_tokens", "chat_template", "template_kwargs_json")
    FIRST_TEXTS_FIELD_NUMBER: _ClassVar[int]
    SECOND_TEXTS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    MAX_FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SECOND_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    first_texts: _containers.RepeatedScalarFieldContainer[str]
    second_texts: _containers.RepeatedScalarFieldContainer[str]
    max_tokens: int
    truncation: Truncation
    max_first_tokens: int
    max_second_tokens: int
    chat_template: str
    template_kwargs_json: bytes
    def __init__(self, first_texts: _Optional[_Iterable[str]] = ..., second_texts: _Optional[_Iterable[str]] = ..., max_tokens: _Optional[int] = ..., truncation: _Optional[_Union[Truncation, _Mapping]] = ..., max_first_tokens: _Optional[int] = ..., max_second_tokens: _Optional[int] = ..., chat_template: _Optional[str] = ..., template_kwargs_json: _Optional[bytes] = ...) -> None: ...

class EncodeResponse(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    def __init__(self, sequences: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ...) -> None: ...

class TokenSequence(_message.Message):
    __slots__ = ("token_ids", "block_keys", "token_type_ids", "token_offsets")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_KEYS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TYPE_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    block_keys: _containers.RepeatedScalarFieldContainer[int]
    token_type_ids: _containers.RepeatedScalarFieldContainer[int]
    token_offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., block_keys: _Optional[_Iterable[int]] = ..., token_type_ids: _Optional[_Iterable[int]] = ..., token_offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("token_ids", "skip_special_tokens", "return_token_bytes", "return_token_strings")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_STRINGS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    skip_special_tokens: bool
    return_token_bytes: bool
    return_token_strings: bool
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., skip_special_tokens: _Optional[bool] = ..., return_token_bytes: _Optional[bool] = ..., return_token_strings: _Optional[bool] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("text", "token_bytes", "token_strings")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_STRINGS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_bytes: _containers.RepeatedScalarFieldContainer[bytes]
    token_strings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, text: _Optional[str] = ..., token_bytes: _Optional[_Iterable[bytes]] = ..., token_strings: _Optional[_Iterable[str]] = ...) -> None: ...

class RenderChatRequest(_message.Message):
    __slots__ = ("messages_json", "tools_json", "add_generation_prompt", "continue_final_message", "template_kwargs_json", "chat_template", "add_special_tokens", "block_size", "cache_salt", "max_tokens", "adapter", "truncation", "images", "image_processor_kwargs_json", "videos", "media_io_kwargs_json", "audios", "default_reasoning_effort", "return_token_offsets", "form", "image_embeds")
    MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_PROCESSOR_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    VIDEOS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_IO_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    AUDIOS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_REASONING_EFFORT_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    IMAGE_EMBEDS_FIELD_NUMBER: _ClassVar[int]
    messages_json: bytes
    tools_json: bytes
    add_generation_prompt: bool
    continue_final_message: bool
    template_kwargs_json: bytes
    chat_template: str
    add_special_tokens: bool
    block_size: int
    cache_salt: str
    max_tokens: int
    adapter: str
    truncation: Truncation
    images: _containers.RepeatedScalarFieldContainer[bytes]
    image_processor_kwargs_json: bytes
    videos: _containers.RepeatedCompositeFieldContainer[Video]
    media_io_kwargs_json: bytes
    audios: _containers.RepeatedScalarFieldContainer[bytes]
    default_reasoning_effort: str
    return_token_offsets: bool
    form: ConversationForm
    image_embeds: _containers.RepeatedCompositeFieldContainer[ImageEmbeds]
    def __init__(self, messages_json: _Optional[bytes] = ..., tools_json: _Optional[bytes] = ..., add_generation_prompt: _Optional[bool] = ..., continue_final_message: _Optional[bool] = ..., template_kwargs_json: _Optional[bytes] = ..., chat_template: _Optional[str] = ..., add_special_tokens: _Optional[bool] = ..., block_size: _Optional[int] = ..., cache_salt: _Optional[str] = ..., max_tokens: _Optional[int] = ..., adapter: _Optional[str] = ..., truncation: _Optional[_Union[Truncation, _Mapping]] = ..., images: _Optional[_Iterable[bytes]] = ..., image_processor_kwargs_json: _Optional[bytes] = ..., videos: _Optional[_Iterable[_Union[Video, _Mapping]]] = ..., media_io_kwargs_json: _Optional[bytes] = ..., audios: _Optional[_Iterable[bytes]] = ..., default_reasoning_effort: _Optional[str] = ..., return_token_offsets: _Optional[bool] = ..., form: _Optional[_Union[ConversationForm, str]] = ..., image_embeds: _Optional[_Iterable[_Union[ImageEmbeds, _Mapping]]] = ...) -> None: ...

class ImageEmbeds(_message.Message):
    __slots__ = ("index", "tensors")
    class TensorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    index: int
    tensors: _containers.ScalarMap[str, bytes]
    def __init__(self, index: _Optional[int] = ..., tensors: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class Video(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, files: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RenderChatResponse(_message.Message):
    __slots__ = ("text", "sequence", "images", "audio_seconds")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    AUDIO_SECONDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    sequence: TokenSequence
    images: _containers.RepeatedCompositeFieldContainer[_common_pb2.Image]
    audio_seconds: float
    def __init__(self, text: _Optional[str] = ..., sequence: _Optional[_Union[TokenSequence, _Mapping]] = ..., images: _Optional[_Iterable[_Union[_common_pb2.Image, _Mapping]]] = ..., audio_seconds: _Optional[float] = ...) -> None: ...

class DetokenizeSessionRequest(_message.Message):
    __slots__ = ("opens", "tokens", "close_stream_ids")
    OPENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    opens: _containers.RepeatedCompositeFieldContainer[DetokenizeOpen]
    tokens: _containers.RepeatedCompositeFieldContainer[DetokenizeTokens]
    close_stream_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, opens: _Optional[_Iterable[_Union[DetokenizeOpen, _Mapping]]] = ..., tokens: _Optional[_Iterable[_Union[DetokenizeTokens, _Mapping]]] = ..., close_stream_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeOpen(_message.Message):
    __slots__ = ("stream_id", "skip_special_tokens", "stop_strings", "include_stop_string", "min_tokens", "prompt_tail_token_ids", "history_token_ids", "kept_special_tokens", "reasoning", "join_special_tokens")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TAIL_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    KEPT_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    JOIN_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    skip_special_tokens: bool
    stop_strings: _containers.RepeatedScalarFieldContainer[str]
    include_stop_string: bool
    min_tokens: int
    prompt_tail_token_ids: _containers.RepeatedScalarFieldContainer[int]
    history_token_ids: _containers.RepeatedScalarFieldContainer[int]
    kept_special_tokens: _containers.RepeatedScalarFieldContainer[str]
    reasoning: _common_pb2.ReasoningMarks
    join_special_tokens: bool
    def __init__(self, stream_id: _Optional[int] = ..., skip_special_tokens: _Optional[bool] = ..., stop_strings: _Optional[_Iterable[str]] = ..., include_stop_string: _Optional[bool] = ..., min_tokens: _Optional[int] = ..., prompt_tail_token_ids: _Optional[_Iterable[int]] = ..., history_token_ids: _Optional[_Iterable[int]] = ..., kept_special_tokens: _Optional[_Iterable[str]] = ..., reasoning: _Optional[_Union[_common_pb2.ReasoningMarks, _Mapping]] = ..., join_special_tokens: _Optional[bool] = ...) -> None: ...

class DetokenizeTokens(_message.Message):
    __slots__ = ("stream_id", "token_ids", "is_last", "drop_last_token", "lookup_token_ids")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    DROP_LAST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    is_last: bool
    drop_last_token: bool
    lookup_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., is_last: _Optional[bool] = ..., drop_last_token: _Optional[bool] = ..., lookup_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeSessionResponse(_message.Message):
    __slots__ = ("deltas", "draining")
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[TextDelta]
    draining: bool
    def __init__(self, deltas: _Optional[_Iterable[_Union[TextDelta, _Mapping]]] = ..., draining: _Optional[bool] = ...) -> None: ...

class TextDelta(_message.Message):
    __slots__ = ("stream_id", "text", "stop_string", "tokens_used", "lookup_token_bytes", "text_lengths", "error")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    TOKENS_USED_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    TEXT_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    text: str
    stop_string: str
    tokens_used: int
    lookup_token_bytes: _containers.RepeatedScalarFieldContainer[bytes]
    text_lengths: _containers.RepeatedScalarFieldContainer[int]
    error: str
    def __init__(self, stream_id: _Optional[int] = ..., text: _Optional[str] = ..., stop_string: _Optional[str] = ..., tokens_used: _Optional[int] = ..., lookup_token_bytes: _Optional[_Iterable[bytes]] = ..., text_lengths: _Optional[_Iterable[int]] = ..., error: _Optional[str] = ...) -> None: ...

class CompileConstraintRequest(_message.Message):
    __slots__ = ("json_schema", "regex", "grammar", "choices", "structural_tag", "backend", "disable_fallback", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_TAG_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DISABLE_FALLBACK_FIELD_NUMBER: _ClassVar[int]
    DISABLE_ANY_WHITESPACE_FIELD_NUMBER: _ClassVar[int]
    DISABLE_ADDITIONAL_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    WHITESPACE_PATTERN_FIELD_NUMBER: _ClassVar[int]
    json_schema: bytes
    regex: str
    grammar: str
    choices: TextChoices
    structural_tag: bytes
    backend: str
    disable_fallback: bool
    disable_any_whitespace: bool
    disable_additional_properties: bool
    whitespace_pattern: str
    def __init__(self, json_schema: _Optional[bytes] = ..., regex: _Optional[str] = ..., grammar: _Optional[str] = ..., choices: _Optional[_Union[TextChoices, _Mapping]] = ..., structural_tag: _Optional[bytes] = ..., backend: _Optional[str] = ..., disable_fallback: _Optional[bool] = ..., disable_any_whitespace: _Optional[bool] = ..., disable_additional_properties: _Optional[bool] = ..., whitespace_pattern: _Optional[str] = ...) -> None: ...

class TextChoices(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class CompileConstraintResponse(_message.Message):
    __slots__ = ("constraint",)
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    constraint: _common_pb2.Constraint
    def __init__(self, constraint: _Optional[_Union[_common_pb2.Constraint, _Mapping]] = ...) -> None: ...

class SplitAudioRequest(_message.Message):
    __slots__ = ("file",)
    FILE_FIELD_NUMBER: _ClassVar[int]
    file: bytes
    def __init__(self, file: _Optional[bytes] = ...) -> None: ...

class SplitAudioResponse(_message.Message):
    __slots__ = ("start_seconds", "seconds", "file")
    START_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    start_seconds: float
    seconds: float
    file: bytes
    def __init__(self, start_seconds: _Optional[float] = ..., seconds: _Optional[float] = ..., file: _Optional[bytes] = ...) -> None: ...

class PrepareLiveAudioRequest(_message.Message):
    __slots__ = ("samples", "begins", "ends")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    samples: bytes
    begins: bool
    ends: bool
    def __init__(self, samples: _Optional[bytes] = ..., begins: _Optional[bool] = ..., ends: _Optional[bool] = ...) -> None: ...

class PrepareLiveAudioResponse(_message.Message):
    __slots__ = ("audio", "num_used")
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    NUM_USED_FIELD_NUMBER: _ClassVar[int]
    audio: _common_pb2.Image
    num_used: int
    def __init__(self, audio: _Optional[_Union[_common_pb2.Image, _Mapping]] = ..., num_used: _Optional[int] = ...) -> None: ...

class ResetMediaCacheRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetMediaCacheResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerInfoResponse(_message.Message):
    __slots__ = ("tokenizer", "vocab_size", "eos_token_ids", "bos_token_id", "has_chat_template", "config_json")
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    tokenizer: str
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bos_token_id: int
    has_chat_template: bool
    config_json: bytes
    def __init__(self, tokenizer: _Optional[str] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., bos_token_id: _Optional[int] = ..., has_chat_template: _Optional[bool] = ..., config_json: _Optional[bytes] = ...) -> None: ...

class GetTokenizerFileRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerFileResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
