"""Which implementation reads a tokenizer."""

from __future__ import annotations

import builtins
import json
import random
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from quire.errors import StartupError
from quire.options.model import ModelOptions
from quire.tokenizer.files import PATTERNS, TokenizerFiles
from quire.tokenizer.modes import find_tokenizer
from quire.tokenizer.tekken import read_tekken
from tests.support.tekken import NUM_SPECIAL, write_tekken
from tests.support.tokenizer_folders import write_merges
from tokenizer_svc.text import TextCodec

TEXTS = ["Hello, wörld! 🙂 don't  \n\n x", "def f(x):\n\treturn x**2", "日本語。", "AbcDEF 12345  ", " a", "", "\x00"]


def read(mode: str, folder: str, **options: Any) -> TokenizerFiles:
    return find_tokenizer(ModelOptions(model=folder, tokenizer_mode=mode, **options)).read()


def test_tekken_encodes_as_mistrals_own(tmp_path: Path) -> None:
    reference = Tekkenizer.from_file(write_tekken(tmp_path))
    tokenizer = read("mistral", str(tmp_path)).tokenizer
    generator = random.Random(0)
    odd = ["".join(generator.choices("a é中\u0301\n🙂", k=30)) for _ in range(99)]
    for text in TEXTS + odd:
        assert tokenizer.encode(text, add_special_tokens=False).ids == reference.encode(text, bos=False, eos=False)
        assert tokenizer.encode(text).ids == reference.encode(text, bos=True, eos=False)
    assert tokenizer.get_vocab_size() == reference.n_words
    assert [tokenizer.id_to_token(number) for number in range(NUM_SPECIAL)] == [
        reference.id_to_piece(number) for number in range(NUM_SPECIAL)
    ]


def test_tekken_decodes_a_token_at_a_time(tmp_path: Path) -> None:
    write_tekken(tmp_path)
    files = read("mistral", str(tmp_path))
    codec = TextCodec(files)
    assert files.special_tokens == {
        "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
    }  # fmt: skip
    ids = codec.encode(["Grüße 🙂"], add_special_tokens=True)[0]
    assert b"".join(map(codec.token_bytes, ids[1:])).decode() == "Grüße 🙂"
    assert codec.decode(ids, skip_special_tokens=True) == "Grüße 🙂"


def test_special_tokens_that_the_file_names(tmp_path: Path) -> None:
    names = ["<unk>", "<s>", "</s>", "[NEW]"]
    tokens = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)]
    path = write_tekken(tmp_path, special_tokens=tokens[::-1])
    tokenizer = read_tekken(path.parent).tokenizer
    assert [tokenizer.id_to_token(number) for number in range(5)] == [*names, "<SPECIAL_4>"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "has no tekken.json.*--tokenizer-mode auto"),
        ("{", "cannot be read"),
        ('{"config": {}}', "cannot be read"),
    ],
)
def test_broken_tekken(tmp_path: Path, text: str | None, words: str) -> None:
    if text:
        (tmp_path / "tekken.json").write_text(text)
    with pytest.raises(StartupError, match=words):
        read("mistral", str(tmp_path))


def test_without_mistrals_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any) -> Any:
        if name == "mistral_common":
            raise ImportError(f"No module named {name!r}")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(StartupError, match=r"pip install 'quire\[mistral\]'"):
        read("mistral", str(tmp_path))


@pytest.mark.parametrize("mode", ["auto", "hf", "deepseek_v32", "deepseek_v4"])
def test_modes_that_read_the_same_file(mode: str, tmp_path: Path) -> None:
    """A template in the folder is of no use with DeepSeek's own way to write conversations."""
    Tokenizer(WordLevel({"a": 0}, "a")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("own")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": mode}))
    files = read(mode, str(tmp_path))
    assert files.tokenizer.get_vocab() == {"a": 0}
    assert files.chat_templates == ({} if mode.startswith("deepseek") else {"default": "own"})


@pytest.mark.parametrize(
    ("mode", "model", "other"), [("deepseek_v32", r"V3\.2", "llama"), ("deepseek_v4", "V4", "deepseek_v32")]
)
def test_deepseeks_modes_are_for_their_models(mode: str, model: str, other: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": other}))
    with pytest.raises(
        StartupError, match=rf"is for DeepSeek {model}, whose config\.json has the model_type {mode}; that"
    ):
        read(mode, str(tmp_path))


def test_slow_ones_are_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_merges(tmp_path, tokenizer_class="GPT2Tokenizer")
    with caplog.at_level("INFO", "quire"):
        assert read("slow", str(tmp_path)).tokenizer.to_str() == read("hf", str(tmp_path)).tokenizer.to_str()
    assert "--tokenizer-mode slow is like hf" in caplog.text


@pytest.mark.parametrize(
    "name", ["vocab.json", "merges.txt", "tiktoken.model", "qwen.tiktoken", "tokenizer.model", "vocab.txt"]
)
def test_older_files_are_downloaded(name: str) -> None:
    assert any(fnmatch(name, pattern) for pattern in PATTERNS)


def test_one_that_a_package_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = tmp_path / "mine-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[quire.tokenizers]\nown = my_tokenizer:make\nodd = builtins:dict\n")
    (tmp_path / "my_tokenizer.py").write_text(
        "import json, tokenizers\nfrom quire.tokenizer.files import TokenizerFiles\n\n"
        "def make():\n"
        "    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({'a': 0}, []))\n"
        "    return TokenizerFiles(tokenizer, json.loads(tokenizer.to_str()), {})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read("custom", "/no/folder", tokenizer="own").tokenizer.get_vocab() == {"a": 0}
    with pytest.raises(StartupError, match="odd returned dict; expected a function"):
        read("custom", "/no/folder", tokenizer="odd")
    with pytest.raises(StartupError, match=r"--tokenizer-mode custom --tokenizer other does not exist\. Choose .*own"):
        read("custom", "/no/folder", tokenizer="other")


def test_auto_reads_tekken_where_there_is_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"No tokenizer\.json"):
        read("auto", str(tmp_path))
    write_tekken(tmp_path)
    files = read("auto", str(tmp_path))
    assert files.conversations == tmp_path / "tekken.json"
    files.tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert read("auto", str(tmp_path)).conversations is None
