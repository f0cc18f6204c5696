"""Converted tokenizers in the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.tokenizer.conversion import kept as kept_module
from quire.tokenizer.conversion import registry
from quire.tokenizer.conversion.source import Converted, Source
from quire.tokenizer.files import read_tokenizer_files
from tests.quire.tokenizer.conversion.test_ranks import NAMED, NUM_RANKS, write_ranks
from tests.support.tokenizer_folders import TEXTS, write_config


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """The folders that have been converted since."""
    convert, found = registry._CONVERSIONS["tiktoken.model"], []

    def watched(source: Source) -> Converted:
        found.append(source.folder)
        return convert(source)

    monkeypatch.setitem(registry._CONVERSIONS, "tiktoken.model", watched)
    monkeypatch.setattr(kept_module, "_LEAST_BYTES", 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return found


def make(folder: Path, **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    write_ranks(folder / "tiktoken.model")
    write_config(folder, tokenizer_class="TikTokenTokenizer", added_tokens_decoder=NAMED, **config)
    return folder


def ids(folder: Path) -> list[list[int]]:
    return [encoding.ids for encoding in read_tokenizer_files(folder).tokenizer.encode_batch(list(TEXTS))]


def test_what_is_kept_is_what_was_converted(tmp_path: Path, conversions: list[Path]) -> None:
    folder = make(tmp_path / "model")
    first, again = read_tokenizer_files(folder), read_tokenizer_files(folder)
    assert len(conversions) == 1
    assert again.tokenizer.to_str() == first.tokenizer.to_str()
    assert again.special_tokens == first.special_tokens != {}
    moved = folder.rename(tmp_path / "moved")
    before = ids(moved)
    assert len(conversions) == 1
    make(moved, add_bos_token=True)
    assert ids(moved) == [[NUM_RANKS, *each] for each in before]
    assert conversions == [folder, moved]


def test_what_is_damaged_is_converted_again(tmp_path: Path, conversions: list[Path]) -> None:
    folder = make(tmp_path / "model")
    right = ids(folder)
    (file,) = (tmp_path / "cache/quire/tokenizers").iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:-1], whole[:200] + b"x" + whole[201:]):
        file.write_bytes(damaged)
        assert ids(folder) == right
        assert file.read_bytes() == whole
    assert len(conversions) == 4


def test_a_few_are_kept(tmp_path: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "_MOST_FILES", 2)
    folders = [make(tmp_path / str(number), model_max_length=number) for number in range(3)]
    for folder in folders:
        read_tokenizer_files(folder)
    assert len(list((tmp_path / "cache/quire/tokenizers").iterdir())) == 2
    read_tokenizer_files(folders[2])
    assert len(conversions) == 3


def test_it_goes_without(tmp_path: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("not a folder")
    folder = make(tmp_path / "model")
    assert ids(folder) == ids(folder)
    assert len(conversions) == 2
    monkeypatch.setattr(kept_module, "_LEAST_BYTES", 2**20)
    (tmp_path / "cache").unlink()
    assert ids(folder)
    assert not (tmp_path / "cache").exists()
