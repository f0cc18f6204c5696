"""Model folders in the layouts of Transformers 4 and 5."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from quire.errors import StartupError
from quire.options.tokenizer import TokenizerOptions
from quire.tokenizer.files import read_tokenizer_files
from tokenizer_svc.main import choose_templates
from tokenizer_svc.text import TextCodec


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A byte-level tokenizer's folder that the test may change."""
    shutil.copytree(folders["byte_level"], tmp_path / "model")
    return tmp_path / "model"


def configure(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_an_old_file_without_the_type_of_its_model(folder: Path) -> None:
    text = "Grüße, the quick brown fox"
    expected = TextCodec(read_tokenizer_files(folder))
    definition = json.loads((folder / "tokenizer.json").read_text())
    del definition["model"]["type"]
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    found = TextCodec(read_tokenizer_files(folder))
    assert found.encode([text], add_special_tokens=True) == expected.encode([text], add_special_tokens=True)
    assert found.pieces == expected.pieces


def test_a_template_beside_the_configuration(folder: Path) -> None:
    configure(folder, chat_template="inside")
    assert read_tokenizer_files(folder).chat_templates == {"default": "inside"}
    (folder / "chat_template.jinja").write_text("beside")
    files = read_tokenizer_files(folder)
    assert files.chat_templates == {"default": "beside"}
    assert "chat_template" not in files.config


def test_several_templates(folder: Path) -> None:
    configure(folder, chat_template=[{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}])
    assert read_tokenizer_files(folder).chat_templates == {"default": "a", "tool_use": "b"}
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("c")
    assert read_tokenizer_files(folder).chat_templates["rag"] == "c"


@pytest.mark.parametrize("tokenizer_class", ["PreTrainedTokenizerFast", "TokenizersBackend"])
def test_tokens_that_only_the_configuration_knows(folder: Path, tokenizer_class: str) -> None:
    configure(folder, tokenizer_class=tokenizer_class, pad_token="<pad>", additional_special_tokens=["<extra>"])
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    codec = TextCodec(read_tokenizer_files(folder))
    text = "a<pad>b<extra>c"
    (token_ids,) = codec.encode([text], add_special_tokens=False)
    assert token_ids == reference(text, add_special_tokens=False)["input_ids"]
    assert codec.decode(token_ids, skip_special_tokens=True) == "abc"


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("eos", [True, False])
def test_tokenizer_json_decides_what_goes_around(folder: Path, bos: bool, eos: bool) -> None:
    configure(folder, add_bos_token=bos, add_eos_token=eos)
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    codec = TextCodec(read_tokenizer_files(folder))
    assert codec.encode(["The fox"], add_special_tokens=True) == [reference("The fox")["input_ids"]]


def test_a_length_limit_in_the_file_is_ignored(folder: Path) -> None:
    path = folder / "tokenizer.json"
    definition = json.loads(path.read_text())
    definition["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(definition))
    (token_ids,) = TextCodec(read_tokenizer_files(folder)).encode(["The quick brown fox"], add_special_tokens=False)
    assert len(token_ids) > 2


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"tokenizer\.json.*--tokenizer"):
        read_tokenizer_files(tmp_path)


def test_a_broken_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(StartupError, match="cannot be loaded"):
        read_tokenizer_files(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{"chat_template": [{"template": "a"}]}, {"added_tokens_decoder": ["<a>"]}, {"additional_special_tokens": 3}],
)
def test_a_broken_configuration(folder: Path, changes: dict[str, Any]) -> None:
    configure(folder, **changes)
    with pytest.raises(StartupError, match=r"model: tokenizer_config\.json or a chat template cannot be read: "):
        read_tokenizer_files(folder)


def test_templates_that_are_no_text(folder: Path) -> None:
    files, file = read_tokenizer_files(folder), folder / "chat_template.jinja"
    file.write_bytes(b"\xe9")
    with pytest.raises(StartupError, match="a chat template cannot be read: UnicodeDecodeError"):
        read_tokenizer_files(folder)
    with pytest.raises(StartupError, match=r"--chat-template .*: no template can be read from it"):
        choose_templates(files, TokenizerOptions(chat_template=str(file)))


def test_letters_that_sentence_transformers_makes_small(folder: Path) -> None:
    text = "A Straße in ÄGYPTEN"
    (expected,) = TextCodec(read_tokenizer_files(folder)).encode([text.lower()], add_special_tokens=True)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": True}))
    assert TextCodec(read_tokenizer_files(folder)).encode([text], add_special_tokens=True) == [expected]
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": False}))
    assert TextCodec(read_tokenizer_files(folder)).encode([text], add_special_tokens=True) != [expected]
