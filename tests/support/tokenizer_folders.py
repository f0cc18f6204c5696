"""Small vocabularies as the files of folders without tokenizer.json, and texts to compare tokenizers by."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers.utils import sentencepiece_model_pb2_new as sentencepiece

from quire.tokenizer.files import read_tokenizer_files
from tokenizer_svc.text import TextCodec

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and then it doesn't jump any more; THEY'LL see 12345 and 67890.",
    "Grüße aus Köln! Ça va? El niño comió piñas. Привет, мир! 你好世界。深度學習 こんにちは 안녕 مرحبا 🎉🚀",
    "def main():\n    print('hello world')\n\treturn 0x1F  # 中文English中文\r\n\n",
] * 3
TEXTS = [
    *CORPUS[:3], "", "x", "a  b   c", "ends \n", "e\u0301 é ﬁ Ⅷ 1½", "don't DON'T I'm", "Ünseen wörds: çğış żółć",
    "\U0001fae0 ß\x00",
    *("".join(random.Random(seed).choices("ab é中文の的\u0301\n.,'s1🙂ABZß", k=40)).strip() for seed in range(40)),
]  # fmt: skip


@cache
def byte_level_bpe() -> Tokenizer:
    """A vocabulary of bytes and 150 merges, with a token that ends texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=406, initial_alphabet=alphabet))
    return tokenizer


def write_merges(folder: Path, special: Sequence[str] = (), **config: Any) -> None:
    """Writes vocab.json, merges.txt and tokenizer_config.json.

    Args:
        special: tokens behind those of the merges.
    """
    byte_level_bpe().model.save(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_bytes())
    vocabulary |= {text: len(vocabulary) + number for number, text in enumerate(special)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    write_config(folder, **config)


def write_config(folder: Path, **config: Any) -> None:
    """Writes tokenizer_config.json."""
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@cache
def pieces() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and kinds of tokens of a BPE vocabulary as SentencePiece makes it."""
    tokens, kinds = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))], [2, 3, 3, *[6] * 256]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500))
    found = [trained.id_to_token(index) for index in range(trained.get_vocab_size())]
    found.sort(key=lambda token: (len(token) == 1, trained.token_to_id(token)))  # characters last, as there
    scores = [0.0] * 259 + [-float(index) for index in range(len(found))]
    return tokens + found, scores, kinds + [1] * len(found)


def write_pieces(
    folder: Path, tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int], *, prefix: bool = True,
    remove_extra_spaces: bool = False, replacements: bytes = b"", **training: Any,
) -> None:  # fmt: skip
    """Writes tokenizer.model.

    Args:
        training: fields of trainer_spec.
    """
    model = sentencepiece.ModelProto()
    for token, score, kind in zip(tokens, scores, kinds, strict=True):
        model.pieces.add(piece=token, score=score, type=kind)
    for field, value in training.items():
        setattr(model.trainer_spec, field, value)
    model.normalizer_spec.add_dummy_prefix = prefix
    model.normalizer_spec.remove_extra_whitespaces = remove_extra_spaces
    model.normalizer_spec.precompiled_charsmap = replacements
    (folder / "tokenizer.model").write_bytes(model.SerializeToString())


def check_like(folder: Path, reference: transformers.PreTrainedTokenizerBase, texts: Sequence[str] = TEXTS) -> None:
    """Compares token ids and decoded texts with those of a tokenizer of Transformers."""
    codec = TextCodec(read_tokenizer_files(folder))
    for add_special_tokens in (True, False):
        found = codec.encode(texts, add_special_tokens)
        assert found == [reference(text, add_special_tokens=add_special_tokens)["input_ids"] for text in texts]
        for token_ids in found:
            for skip in (True, False):
                decoded = reference.decode(token_ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                assert codec.decode(token_ids, skip) == decoded
