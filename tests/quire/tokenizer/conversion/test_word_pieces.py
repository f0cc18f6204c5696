"""vocab.txt, compared with Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from quire.errors import StartupError
from quire.tokenizer.files import read_tokenizer_files
from tests.support.tokenizer_folders import TEXTS, check_like, write_config

WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "fox", "##es", "jump", "##s", "grüße", "grusse",
    "gruße", "The", "中", "文", "##文", ",", ".", "a", "b", "##b", "é", "e", "##e", "\u3000", "12", "##3",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "config", [{}, {"do_lower_case": False}, {"tokenize_chinese_chars": False, "strip_accents": False}]
)
def test_like_transformers(folder: Path, config: dict[str, Any]) -> None:
    write_config(folder, tokenizer_class="BertTokenizer", **config)
    reference = transformers.BertTokenizer.from_pretrained(folder)
    check_like(folder, reference, [*TEXTS, "The foxes jumps, 123 [MASK].", "[CLS] a [SEP]"])
    pair = read_tokenizer_files(folder).tokenizer.encode("a fox", "jumps")
    expected = reference("a fox", "jumps")
    assert (pair.ids, pair.type_ids) == (expected["input_ids"], expected["token_type_ids"])


def test_what_cannot_be_read(folder: Path) -> None:
    write_config(folder, tokenizer_class="BertJapaneseTokenizer")
    with pytest.raises(StartupError, match=r"for which vocab\.txt cannot be read; for BertTokenizer"):
        read_tokenizer_files(folder)
    write_config(folder)
    (folder / "vocab.txt").write_bytes(b"\xff")
    with pytest.raises(StartupError, match=r"vocab\.txt cannot be read"):
        read_tokenizer_files(folder)
