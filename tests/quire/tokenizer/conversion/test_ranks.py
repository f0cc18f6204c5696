"""Files of tiktoken's, compared with that package."""

from __future__ import annotations

import base64
import unicodedata
from pathlib import Path

import pytest
import tiktoken

from quire.errors import StartupError
from quire.structured.vocabulary import make_vocabulary
from quire.tokenizer.files import read_tokenizer_files
from quire.tokenizer.token_bytes import make_token_bytes
from tests.support.tokenizer_folders import TEXTS, byte_level_bpe, write_config
from tokenizer_svc.text import TextCodec

NUM_RANKS = 406
KIMI = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
    ]
)  # fmt: skip
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205))]
HUNYUANS = ["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", *QWENS[3:]]
NAMED = {
    "406": {"content": "[BOS]", "special": True}, "408": {"content": "<|im_end|>", "special": True},
    "412": {"content": "<|tool_calls_section_begin|>", "special": False},
}  # fmt: skip
KIMIS = [NAMED[str(number)]["content"] if str(number) in NAMED else f"<|reserved_token_{number}|>"
         for number in range(NUM_RANKS, NUM_RANKS + 256)]  # fmt: skip


def write_ranks(path: Path) -> dict[bytes, int]:
    vocabulary = byte_level_bpe().get_vocab()
    table = make_token_bytes(byte_level_bpe(), {"decoder": {"type": "ByteLevel"}})
    assert table is not None and len(vocabulary) == NUM_RANKS
    ranks = {table[rank]: rank for rank in range(NUM_RANKS)}
    path.write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(word), rank) for word, rank in ranks.items()))
    return ranks


@pytest.mark.parametrize(
    ("name", "file", "pattern", "special"),
    [
        ("TikTokenTokenizer", "tiktoken.model", KIMI, KIMIS),
        ("QWenTokenizer", "qwen.tiktoken", QWEN, QWENS),
        ("HYTokenizer", "hy.tiktoken", QWEN, HUNYUANS),
    ],
)
def test_like_tiktoken(tmp_path: Path, name: str, file: str, pattern: str, special: list[str]) -> None:
    ranks = write_ranks(tmp_path / file)
    write_config(tmp_path, tokenizer_class=name, added_tokens_decoder=NAMED if special is KIMIS else {})
    ids = {text: NUM_RANKS + number for number, text in enumerate(special)}
    reference = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens=ids)
    codec = TextCodec(read_tokenizer_files(tmp_path))
    for text in (*TEXTS, " ".join(special), f"a{special[0]}b{special[-1]}"):
        composed = text if special is KIMIS else unicodedata.normalize("NFC", text)
        expected = reference.encode(composed, allowed_special="all")
        assert codec.encode([text], add_special_tokens=True) == [expected], text
        assert codec.decode(expected, skip_special_tokens=False) == reference.decode(expected)
    assert codec.vocab_size == reference.n_vocab


def test_special_tokens_of_kimi(tmp_path: Path) -> None:
    """Tokens of tools stay in the text."""
    write_ranks(tmp_path / "tiktoken.model")
    write_config(tmp_path, tokenizer_class="TikTokenTokenizer", added_tokens_decoder=NAMED, eos_token="<|im_end|>")
    files = read_tokenizer_files(tmp_path)
    assert files.special_tokens == {"bos_token": "[BOS]", "eos_token": "<|im_end|>"}
    assert files.tokenizer.decode([406, 64, 412, 408, 407]) == files.tokenizer.decode([64, 412])
    vocabulary = make_vocabulary(files)
    assert vocabulary.tokens[412] == b"<|tool_calls_section_begin|>" and 412 not in vocabulary.special_token_ids
    assert vocabulary.eos_token_ids == (408,)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "tiktoken.model"
    write_ranks(path)
    with pytest.raises(StartupError, match=r"names no tokenizer_class, for which tiktoken\.model cannot .*TikTokenTok"):
        read_tokenizer_files(tmp_path)
    write_config(tmp_path, tokenizer_class="QWenTokenizer")
    path.write_text("YQ== 0\nb? 1\n")
    with pytest.raises(StartupError, match=r"tiktoken\.model has no byte strings in base64 with their ranks"):
        read_tokenizer_files(tmp_path)
