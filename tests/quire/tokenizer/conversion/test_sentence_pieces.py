"""tokenizer.model, compared with Transformers and with SentencePiece's own algorithms."""

from __future__ import annotations

import importlib
import math
import shutil
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import mistral_common
import pytest
import transformers

from quire.errors import StartupError
from quire.structured.vocabulary import make_vocabulary
from quire.tokenizer.files import read_tokenizer_files
from quire.v1.sentencepiece_pb2 import SentencePieceModel
from tests.support.tokenizer_folders import TEXTS, check_like, pieces, write_config, write_pieces
from tokenizer_svc.text import TextCodec

UNIGRAM, BPE, WORD = 1, 2, 3
PIECES = {"▁": -2.0, "▁the": -3.0, "the": -4.5, "▁fox": -5.0, "f": -6.0, "o": -6.5, "x": -6.0, "ox": -7.0, "t": -5.0,
          "h": -5.5, "e": -4.0, "he": -6.0, "中": -8.0, "中文": -9.0, "文": -9.5, "ß": -10.0}  # fmt: skip


@pytest.fixture
def bpe(tmp_path: Path) -> Path:
    write_pieces(tmp_path, *pieces(), model_type=BPE, byte_fallback=True)
    return tmp_path


@pytest.fixture
def _extractor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets Transformers read the file without the package sentencepiece, which it asks for but does not use."""
    module = importlib.import_module("transformers.convert_slow_tokenizer")
    monkeypatch.setattr(module, "requires_backends", lambda *_: None)


@pytest.mark.usefixtures("_extractor")
@pytest.mark.parametrize("add_bos_token", [True, False])
def test_like_transformers(bpe: Path, add_bos_token: bool) -> None:
    write_config(bpe, tokenizer_class="LlamaTokenizer", legacy=False, add_bos_token=add_bos_token, add_eos_token=True)
    reference = transformers.LlamaTokenizer.from_pretrained(bpe)
    check_like(bpe, reference, [*TEXTS, "<s>[INST] a fox </s> the", "a</s>b"])


@pytest.mark.usefixtures("_extractor")
def test_like_gemma_of_transformers(tmp_path: Path) -> None:
    tokens, scores, kinds = pieces()
    turns = ["<start_of_turn>", "\n\n\n"]
    write_pieces(
        tmp_path, ["<pad>", "<eos>", "<bos>", "<unk>", *tokens[3:], *turns], [0.0, *scores, 0.0, 0.0],
        [3, 3, 3, 2, *kinds[3:], 4, 4], prefix=False, model_type=BPE, byte_fallback=True, unk_id=3, bos_id=2, eos_id=1,
        pad_id=0,
    )  # fmt: skip
    write_config(tmp_path, tokenizer_class="GemmaTokenizer", add_bos_token=True)
    files = read_tokenizer_files(tmp_path)
    assert files.special_tokens == {
        "pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"
    }  # fmt: skip
    reference = transformers.GemmaTokenizer.from_pretrained(tmp_path, mask_token=None)
    check_like(tmp_path, reference, [*TEXTS, " b", "<start_of_turn>user\n\n\n\nthe"])


def merged(text: str, tokens: Sequence[str], scores: Sequence[float]) -> Iterator[int]:
    """SentencePiece's BPE: the neighbors that form the piece with the highest score are merged first."""
    ids = {token: index for index, token in enumerate(tokens)}
    parts = list(text)
    while found := [(scores[ids[pair]], -at) for at, pair in enumerate(map("".join, pairwise(parts))) if pair in ids]:
        at = -max(found)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    for part in parts:
        yield from [ids[part]] if part in ids else [ids[f"<0x{byte:02X}>"] for byte in part.encode()]


@pytest.mark.parametrize("prefix", [True, False])
def test_like_sentencepiece(tmp_path: Path, prefix: bool) -> None:
    """Without `legacy: false`, each text between added tokens gets a space in front. By default, BOS is added."""
    write_pieces(tmp_path, *pieces(), prefix=prefix, model_type=BPE, byte_fallback=True)
    codec = TextCodec(read_tokenizer_files(tmp_path))
    tokens, scores, _ = pieces()

    def expected(text: str) -> list[int]:
        return [*merged(("▁" if prefix and text else "") + text.replace(" ", "▁"), tokens, scores)]

    for text in (*TEXTS, " a", "  two", "\n"):
        assert codec.encode([text], add_special_tokens=True) == [[1, *expected(text)]], text
        assert codec.decode(expected(text), skip_special_tokens=True) == text
    assert codec.encode(["a</s>b"], add_special_tokens=False) == [[*expected("a"), 2, *expected("b")]]


def test_the_file_of_mistral_7b(tmp_path: Path) -> None:
    """Mistral's package comes with it."""
    file = Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1"
    shutil.copy(file, tmp_path / "tokenizer.model")
    files = read_tokenizer_files(tmp_path)
    assert files.tokenizer.get_vocab_size() == 32000
    assert files.tokenizer.encode("Hello, world!").ids == [1, 22557, 28725, 1526, 28808]
    model = SentencePieceModel.FromString(file.read_bytes())
    tokens, scores = [piece.text for piece in model.pieces], [piece.score for piece in model.pieces]
    for text in TEXTS[1:10:2]:
        expected = [*merged(("▁" if text else "") + text.replace(" ", "▁"), tokens, scores)]
        assert files.tokenizer.encode(text, add_special_tokens=False).ids == expected, text


def test_the_configuration_goes_first(bpe: Path) -> None:
    """As in InternLM 2, names take the place of pieces that were left for them; others come behind."""
    ids = {"300": {"content": "<|im_end|>", "special": True, "normalized": True}, "759": {"content": "<tool>"}}
    write_config(bpe, add_prefix_space=False, add_bos_token=False, eos_token="<|im_end|>", added_tokens_decoder=ids)
    files = read_tokenizer_files(bpe)
    assert files.tokenizer.encode("<|im_end|><tool></s>").ids == [300, 759, 2]
    assert files.special_tokens == {"eos_token": "<|im_end|>", "bos_token": "<s>", "unk_token": "<unk>"}
    vocabulary = make_vocabulary(files)
    assert vocabulary.size == 760 and vocabulary.tokens[300] == b"<|im_end|>" and vocabulary.tokens[13] == b"\n"
    assert {0, 1, 2, 300} < vocabulary.special_token_ids and 759 not in vocabulary.special_token_ids


def likeliest(text: str, scores: dict[str, float], unknown: float) -> list[str]:
    """SentencePiece's unigram model: the parts whose scores have the highest sum."""
    best: list[tuple[float, list[str]]] = [(0.0, [])]
    for end in range(1, len(text) + 1):
        found = [(best[start][0] + scores[text[start:end]], [*best[start][1], text[start:end]])
                 for start in range(end) if text[start:end] in scores]  # fmt: skip
        unknown_too = [] if text[end - 1] in scores else [(best[-1][0] + unknown, [*best[-1][1], text[end - 1]])]
        best.append(max([*found, *unknown_too], key=lambda path: path[0], default=(-math.inf, [])))
    return best[-1][1]


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_unigram_vocabularies(tmp_path: Path, byte_fallback: bool) -> None:
    first = ["<unk>", "<s>", "</s>", *([f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else [])]
    tokens = [*first, *PIECES]
    write_pieces(
        tmp_path, tokens, [*[0.0] * len(first), *PIECES.values()],
        [2, 3, 3, *[6] * (len(first) - 3), *[1] * len(PIECES)], remove_extra_spaces=True, byte_fallback=byte_fallback,
    )  # fmt: skip
    codec = TextCodec(read_tokenizer_files(tmp_path))
    for text in ("the fox", "  the   fox ", "fooxthehe 中中文文", "ßß the\n\n", " ", "", "foxy 12 the"):
        kept = " ".join(filter(None, text.split(" ")))
        parts = likeliest("▁" + kept.replace(" ", "▁") if kept else "", PIECES, -20.0)
        expected: list[int] = []
        for part in parts:
            if part in PIECES:
                expected.append(tokens.index(part))
            elif byte_fallback:
                expected += [tokens.index(f"<0x{byte:02X}>") for byte in part.encode()]
            elif expected[-1:] != [0]:  # unknown characters in a row are one token
                expected.append(0)
        assert codec.encode([text], add_special_tokens=False) == [expected], text
        if byte_fallback:
            assert codec.decode(expected, skip_special_tokens=True) == kept


def replacing(character: str, other: str) -> bytes:
    """A compiled table that replaces one ASCII character: its trie as a double array, then the texts."""
    units, code = [0] * 256, ord(character)
    units[code] = code | 1 << 8 | (code ^ 1) << 10  # a match, whose text's place is in unit 1
    return struct.pack("<I256I", 1024, *units) + other.encode() + b"\0"


def test_characters_are_replaced_first(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *PIECES]
    scores, kinds = [*[0.0] * 3, *PIECES.values()], [2, 3, 3, *[1] * len(PIECES)]
    write_pieces(tmp_path, tokens, scores, kinds, prefix=False, replacements=replacing("Q", "fo x"))
    tokenizer = read_tokenizer_files(tmp_path).tokenizer
    assert tokenizer.encode("theQ").tokens == ["<s>", "the", "f", "o", "▁", "x"]


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_text("YQ== 0\n")
    with pytest.raises(StartupError, match=r"tokenizer\.model is not a model of SentencePiece"):
        read_tokenizer_files(tmp_path)
    write_pieces(tmp_path, ["<unk>", "a"], [0.0, 0.0], [2, 1], model_type=WORD)
    with pytest.raises(StartupError, match="a vocabulary with the algorithm WORD is not supported; UNIGRAM and BPE"):
        read_tokenizer_files(tmp_path)
    write_pieces(tmp_path, ["<unk>", "a"], [0.0, 0.0], [2, 1], treat_whitespace_as_suffix=True)
    with pytest.raises(StartupError, match="spaces at the ends of words"):
        read_tokenizer_files(tmp_path)
    write_pieces(tmp_path, ["<unk>", "a", "a"], [0.0, 0.0, 0.0], [2, 1, 1])
    with pytest.raises(StartupError, match="1 pieces have the same text as another"):
        read_tokenizer_files(tmp_path)
