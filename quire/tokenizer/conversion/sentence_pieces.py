"""Converts tokenizer.model, SentencePiece's format."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from quire.errors import StartupError
from quire.tokenizer.conversion.source import Converted, Source
from quire.tokenizer.definition import OTHER, SPACE_IN_FRONT, SPELLED_SPACES, bpe, pieces_decoder, whole
from quire.tokenizer.pieces_merges import SPACE, merges_of_pieces
from quire.tokenizer.vocabulary_files import SENTENCE_PIECES
from quire.v1.sentencepiece_pb2 import SentencePiece, SentencePieceModel, SentencePieceTraining

_NAMED = {"unk_token": "unk_id", "bos_token": "bos_id", "eos_token": "eos_id", "pad_token": "pad_id"}
_ADDED = (SentencePiece.CONTROL, SentencePiece.USER_DEFINED, SentencePiece.UNKNOWN)
_MERGED = (SentencePiece.NORMAL, SentencePiece.USER_DEFINED)


def convert_pieces(source: Source) -> Converted:
    """
    Raises:
        StartupError: the file cannot be read, or has a vocabulary of a kind that is not supported.
    """
    path = source.folder / SENTENCE_PIECES
    file = _read(path)
    vocabulary = {piece.text: index for index, piece in enumerate(file.pieces)}
    if len(vocabulary) != len(file.pieces):
        raise StartupError(
            f"{path}: {len(file.pieces) - len(vocabulary)} pieces have the same text as another. {OTHER}"
        )
    ids = {name: getattr(file.training, field) for name, field in _NAMED.items()}
    defaults = {name: file.pieces[index].text for name, index in ids.items() if 0 <= index < len(file.pieces)}
    own = {
        index: {"content": piece.text, "special": piece.kind != SentencePiece.USER_DEFINED}
        for index, piece in enumerate(file.pieces)
        if piece.kind in _ADDED
    }
    # Found in the text as it is written: a space in front would hide them.
    tokens = [{**token, "normalized": False} for token in source.place_tokens(vocabulary, own)]
    special = source.named_tokens(defaults, vocabulary)
    prefix = source.flag("add_prefix_space", file.normalization.add_space_in_front)
    is_unigram = file.training.algorithm == SentencePieceTraining.UNIGRAM
    return Converted(
        whole(
            _unigram(file, vocabulary) if is_unigram else _bpe(file, vocabulary, defaults.get("unk_token")), tokens,
            **_before(file, prefix=prefix, everywhere=source.flag("legacy", True)),
            decoder=pieces_decoder(prefix=prefix), post_processor=source.framing(special, vocabulary, begins=True),
        ),
        special,
    )  # fmt: skip


def _read(path: Path) -> SentencePieceModel:
    try:
        file = SentencePieceModel.FromString(path.read_bytes())
    except (OSError, DecodeError) as error:
        raise StartupError(f"{path} is not a model of SentencePiece: {error}. {OTHER}") from error
    training = file.training
    if (
        training.algorithm not in (SentencePieceTraining.UNIGRAM, SentencePieceTraining.BPE)
        or training.spaces_end_words
    ):
        name = SentencePieceTraining.Algorithm.Name(training.algorithm)
        what = f"spaces at the ends of words ({name})" if training.spaces_end_words else f"the algorithm {name}"
        raise StartupError(f"{path}: a vocabulary with {what} is not supported; UNIGRAM and BPE are. {OTHER}")
    return file


def _unigram(file: SentencePieceModel, vocabulary: dict[str, int]) -> dict[str, Any]:
    scores = dict(enumerate(piece.score for piece in file.pieces))
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    return {
        "type": "Unigram", "unk_id": file.training.unk_id, "byte_fallback": file.training.byte_fallback,
        "vocab": [(text, scores.get(vocabulary[text], 0.0)) for text in pieces],
    }  # fmt: skip


def _bpe(file: SentencePieceModel, vocabulary: dict[str, int], unknown: str | None) -> dict[str, Any]:
    merged = {
        piece.text: index
        for index, piece in enumerate(file.pieces)
        if piece.kind in _MERGED and piece.text in vocabulary
    }
    merges = merges_of_pieces(merged, [piece.score for piece in file.pieces])
    return bpe(vocabulary, merges, fuse_unk=True, byte_fallback=file.training.byte_fallback, unk_token=unknown)


def _before(file: SentencePieceModel, *, prefix: bool, everywhere: bool) -> dict[str, Any]:
    """The normalizer and pre-tokenizer.

    Args:
        prefix: whether texts get a space in front.
        everywhere: and the texts between added tokens too, as in SentencePiece (in Transformers: legacy).
    """
    steps: list[dict[str, Any]] = []
    if table := file.normalization.replacements:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()})
    if file.normalization.remove_extra_spaces:
        steps += [_replaced(r"\A +| +\z", ""), _replaced(" {2,}", " ")]
    if prefix and not everywhere:
        spelled = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
        return {"normalizer": {"type": "Sequence", "normalizers": steps} if steps else None, "pre_tokenizer": spelled}
    steps += [SPACE_IN_FRONT, SPELLED_SPACES] if prefix else [SPELLED_SPACES]
    return {"normalizer": {"type": "Sequence", "normalizers": steps}}


def _replaced(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}
