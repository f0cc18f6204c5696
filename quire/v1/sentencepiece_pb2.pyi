from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SentencePieceModel(_message.Message):
    __slots__ = ("pieces", "training", "normalization")
    PIECES_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZATION_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedCompositeFieldContainer[SentencePiece]
    training: SentencePieceTraining
    normalization: SentencePieceNormalization
    def __init__(self, pieces: _Optional[_Iterable[_Union[SentencePiece, _Mapping]]] = ..., training: _Optional[_Union[SentencePieceTraining, _Mapping]] = ..., normalization: _Optional[_Union[SentencePieceNormalization, _Mapping]] = ...) -> None: ...

class SentencePiece(_message.Message):
    __slots__ = ("text", "score", "kind")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[SentencePiece.Kind]
        NORMAL: _ClassVar[SentencePiece.Kind]
        UNKNOWN: _ClassVar[SentencePiece.Kind]
        CONTROL: _ClassVar[SentencePiece.Kind]
        USER_DEFINED: _ClassVar[SentencePiece.Kind]
        UNUSED: _ClassVar[SentencePiece.Kind]
        BYTE: _ClassVar[SentencePiece.Kind]
    KIND_UNSPECIFIED: SentencePiece.Kind
    NORMAL: SentencePiece.Kind
    UNKNOWN: SentencePiece.Kind
    CONTROL: SentencePiece.Kind
    USER_DEFINED: SentencePiece.Kind
    UNUSED: SentencePiece.Kind
    BYTE: SentencePiece.Kind
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    text: str
    score: float
    kind: SentencePiece.Kind
    def __init__(self, text: _Optional[str] = ..., score: _Optional[float] = ..., kind: _Optional[_Union[SentencePiece.Kind, str]] = ...) -> None: ...

class SentencePieceTraining(_message.Message):
    __slots__ = ("algorithm", "spaces_end_words", "byte_fallback", "unk_id", "bos_id", "eos_id", "pad_id")
    class Algorithm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ALGORITHM_UNSPECIFIED: _ClassVar[SentencePieceTraining.Algorithm]
        UNIGRAM: _ClassVar[SentencePieceTraining.Algorithm]
        BPE: _ClassVar[SentencePieceTraining.Algorithm]
        WORD: _ClassVar[SentencePieceTraining.Algorithm]
        CHARACTER: _ClassVar[SentencePieceTraining.Algorithm]
    ALGORITHM_UNSPECIFIED: SentencePieceTraining.Algorithm
    UNIGRAM: SentencePieceTraining.Algorithm
    BPE: SentencePieceTraining.Algorithm
    WORD: SentencePieceTraining.Algorithm
    CHARACTER: SentencePieceTraining.Algorithm
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    SPACES_END_WORDS_FIELD_NUMBER: _ClassVar[int]
    BYTE_FALLBACK_FIELD_NUMBER: _ClassVar[int]
    UNK_ID_FIELD_NUMBER: _ClassVar[int]
    BOS_ID_FIELD_NUMBER: _ClassVar[int]
    EOS_ID_FIELD_NUMBER: _ClassVar[int]
    PAD_ID_FIELD_NUMBER: _ClassVar[int]
    algorithm: SentencePieceTraining.Algorithm
    spaces_end_words: bool
    byte_fallback: bool
    unk_id: int
    bos_id: int
    eos_id: int
    pad_id: int
    def __init__(self, algorithm: _Optional[_Union[SentencePieceTraining.Algorithm, str]] = ..., spaces_end_words: _Optional[bool] = ..., byte_fallback: _Optional[bool] = ..., unk_id: _Optional[int] = ..., bos_id: _Optional[int] = ..., eos_id: _Optional[int] = ..., pad_id: _Optional[int] = ...) -> None: ...

class SentencePieceNormalization(_message.Message):
    __slots__ = ("replacements", "add_space_in_front", "remove_extra_spaces")
    REPLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    ADD_SPACE_IN_FRONT_FIELD_NUMBER: _ClassVar[int]
    REMOVE_EXTRA_SPACES_FIELD_NUMBER: _ClassVar[int]
    replacements: bytes
    add_space_in_front: bool
    remove_extra_spaces: bool
    def __init__(self, replacements: _Optional[bytes] = ..., add_space_in_front: _Optional[bool] = ..., remove_extra_spaces: _Optional[bool] = ...) -> None: ...
