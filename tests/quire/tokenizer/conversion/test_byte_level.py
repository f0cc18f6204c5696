"""vocab.json and merges.txt, compared with Transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import models

from quire.errors import StartupError
from quire.structured.vocabulary import make_vocabulary
from quire.tokenizer.files import read_tokenizer_files
from tests.support.tokenizer_folders import check_like, write_config, write_merges

END = "<|endoftext|>"
WHISPER = [END, "<|startoftranscript|>", "<|translate|>", "<|transcribe|>", "<|notimestamps|>"]


@pytest.mark.parametrize(
    ("name", "special", "config"),
    [
        ("GPT2Tokenizer", [END], {}),
        ("GPT2Tokenizer", [END], {"add_prefix_space": True}),
        # As facebook/opt-125m's.
        ("GPT2Tokenizer", ["<s>", "<pad>", "</s>"], {
            "add_bos_token": True, **dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>"),
            "pad_token": "<pad>",
        }),
        ("GPTNeoXTokenizer", [END, "<|padding|>"], {"add_eos_token": True}),
        ("Qwen2Tokenizer", [END], {}),
        ("RobertaTokenizer", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], {}),
        ("WhisperTokenizer", WHISPER, {}),
    ],
)  # fmt: skip
def test_like_transformers(tmp_path: Path, name: str, special: list[str], config: dict[str, Any]) -> None:
    write_merges(tmp_path, special, tokenizer_class=name, **config)
    check_like(tmp_path, getattr(transformers, name).from_pretrained(tmp_path))


def test_like_qwen35_of_transformers(tmp_path: Path) -> None:
    """Its class does not look for these files itself."""
    write_merges(tmp_path, [END], tokenizer_class="Qwen3_5Tokenizer")
    vocabulary, merges = models.BPE.read_file(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    check_like(tmp_path, transformers.Qwen3_5Tokenizer(vocab=vocabulary, merges=merges))


def test_pairs_of_roberta(tmp_path: Path) -> None:
    write_merges(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], tokenizer_class="RobertaTokenizerFast")
    reference = transformers.RobertaTokenizer.from_pretrained(tmp_path)
    found = read_tokenizer_files(tmp_path).tokenizer.encode("a fox", "two")
    assert found.ids == reference("a fox", "two")["input_ids"]


def test_tokens_that_the_configuration_numbers(tmp_path: Path) -> None:
    """As Qwen 2's. What is between them and the vocabulary is filled, as there."""
    tokens = {
        "406": {"content": END, "special": True}, "407": {"content": "<|im_start|>", "special": True},
        "409": {"content": "<tool_call>", "special": False, "normalized": False},
    }  # fmt: skip
    write_merges(tmp_path, tokenizer_class="Qwen2Tokenizer", added_tokens_decoder=tokens, eos_token="<|im_start|>")
    files = read_tokenizer_files(tmp_path)
    assert files.special_tokens == {"eos_token": "<|im_start|>", "pad_token": END, "unk_token": END}
    token_ids = files.tokenizer.encode("<|im_start|>a<tool_call>b<|endoftext|>").ids
    assert token_ids[::2] == [407, 409, 406]
    assert files.tokenizer.decode(token_ids) == "a<tool_call>b"
    assert files.tokenizer.get_vocab_size() == 410
    vocabulary = make_vocabulary(files)
    assert vocabulary.tokens[409] == b"<tool_call>"
    assert {406, 407, 408} == vocabulary.special_token_ids
    assert vocabulary.eos_token_ids == (407,)


def test_the_older_files_for_added_and_special_tokens(tmp_path: Path) -> None:
    write_merges(tmp_path, ["</s>"], tokenizer_class="GPT2Tokenizer")
    special = {"eos_token": {"content": "</s>", "lstrip": False, "normalized": True}, "pad_token": "<pad>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<pad>": 408, "<tool>": 407}))
    reference = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    check_like(tmp_path, reference, ["a<pad>b</s>c <tool>"])
    files = read_tokenizer_files(tmp_path)
    assert files.tokenizer.encode("<tool><pad></s>").ids == [407, 408, 406]
    assert files.special_tokens == {"eos_token": "</s>", "pad_token": "<pad>"}


@pytest.mark.parametrize(("model_type", "like"), [("qwen2_moe", "Qwen2Tokenizer"), ("opt", "GPT2Tokenizer")])
def test_a_folder_that_names_no_class(tmp_path: Path, model_type: str, like: str) -> None:
    write_merges(tmp_path, [END], tokenizer_class="PreTrainedTokenizerFast")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    check_like(tmp_path, getattr(transformers, like).from_pretrained(tmp_path))


def test_templates_are_found(tmp_path: Path) -> None:
    write_merges(tmp_path, [END])
    (tmp_path / "chat_template.jinja").write_text("own")
    assert read_tokenizer_files(tmp_path).chat_templates == {"default": "own"}


def test_letters_that_sentence_transformers_makes_small(tmp_path: Path) -> None:
    write_merges(tmp_path, [END])
    expected = read_tokenizer_files(tmp_path).tokenizer.encode("grüße").ids
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert read_tokenizer_files(tmp_path).tokenizer.encode("GRÜSSE".replace("SS", "ß")).ids == expected


def test_what_cannot_be_read(tmp_path: Path) -> None:
    write_merges(tmp_path, tokenizer_class="DebertaTokenizer")
    with pytest.raises(StartupError, match=r"tokenizer_class DebertaTokenizer, for which merges\.txt cannot .*GPT2Tok"):
        read_tokenizer_files(tmp_path)
    write_config(tmp_path, add_bos_token=True, bos_token="<none>")
    with pytest.raises(StartupError, match=r"tokenizer_config\.json .* cannot be read: KeyError: '<none>'"):
        read_tokenizer_files(tmp_path)
    write_config(tmp_path, added_tokens_decoder={"406": {}})
    with pytest.raises(StartupError, match="the added token 406 has no text"):
        read_tokenizer_files(tmp_path)
    write_config(tmp_path, added_tokens_decoder={"4000000000": {"content": "<a>"}})
    with pytest.raises(StartupError, match="numbers a token 4000000000, but has only 407"):
        read_tokenizer_files(tmp_path)
    write_config(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(StartupError, match=r"its tokenizer cannot be built: .*Name the original model's tokenizer"):
        read_tokenizer_files(tmp_path)
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(StartupError, match=r"vocab\.json or merges\.txt beside it cannot be read"):
        read_tokenizer_files(tmp_path)
