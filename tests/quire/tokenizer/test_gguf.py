"""Tokenizers stored in GGUF give the same token ids as the originals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from quire.errors import StartupError
from quire.tokenizer.files import TokenizerFiles, read_tokenizer_files
from quire.tokenizer.gguf_rules import BYTE_LEVEL, PreTokenizer
from quire.tokenizer.token_bytes import make_token_bytes
from tests.support.gguf_files import tokenizer_metadata, write_metadata
from tests.support.tokenizer_folders import pieces

CORPUS = [path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parents[3] / "docs").glob("*.md"))[:4]]
TEXTS = [
    "", " ", "Hello world! It's 12345 o'clock, WE'LL see", "  two  spaces\n\n\ttabs \r\n",
    "Grüße, naïve café, e\u0301 A\u030a", "日本語 текст 🤗🤗", "<|im_start|>user\nhi<|im_end|> there",
    "x=1;y==2 // a<think>b</think> c", CORPUS[0][:2000],
]  # fmt: skip
LLAMA = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
         "tokenizer.ggml.unknown_token_id": 0}  # fmt: skip


def train(rules: PreTokenizer) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=rules.ignore_merges))
    if rules.composes:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if rules.digits else []
    steps += [pre_tokenizers.Punctuation("contiguous")] if rules.punctuation else []
    steps += [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not rules.patterns))
    if rules.triples:
        triples = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
        steps += [pre_tokenizers.Digits(individual_digits=False), triples]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer


def check(found: TokenizerFiles, original: Tokenizer) -> None:
    for text in TEXTS:
        token_ids = original.encode(text).ids
        assert found.tokenizer.encode(text).ids == token_ids, text
        for skip in (True, False):
            assert found.tokenizer.decode(token_ids, skip) == original.decode(token_ids, skip)
    assert found.tokenizer.get_vocab() == original.get_vocab()
    assert make_token_bytes(found.tokenizer, found.definition) is not None


@pytest.mark.parametrize("rules", [next(name for name in BYTE_LEVEL if BYTE_LEVEL[name] == each)
                                   for each in dict.fromkeys(BYTE_LEVEL.values())])  # fmt: skip
def test_byte_level_vocabularies(tmp_path: Path, rules: str) -> None:
    original = train(BYTE_LEVEL[rules])
    metadata = tokenizer_metadata(original, rules)
    metadata["tokenizer.ggml.tokens"].append("[PAD0]")  # pads the embedding matrix
    metadata["tokenizer.ggml.token_type"].append(5)
    file = write_metadata(tmp_path / "m.gguf", metadata | {"tokenizer.ggml.add_bos_token": False})
    check(read_tokenizer_files(file), original)


@pytest.mark.parametrize("prefix", [True, False])
def test_vocabularies_of_pieces(tmp_path: Path, prefix: bool) -> None:
    """Matches Transformers' Llama tokenizer, which differs a little only in how it treats leading spaces."""
    tokens, scores, kinds = pieces()
    metadata = LLAMA | {
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.add_space_prefix": prefix,
    }  # fmt: skip
    file = write_metadata(tmp_path / "m.gguf", metadata)
    found = read_tokenizer_files(file)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = transformers.tokenization_utils_base.generate_merges(vocabulary, dict(zip(tokens, scores, strict=True)))
    original = transformers.LlamaTokenizer(vocab=vocabulary, merges=merges, add_prefix_space=prefix)
    for text in TEXTS[2:]:
        text = text.strip()
        token_ids = original(text)["input_ids"]
        assert found.tokenizer.encode(text, add_special_tokens=False).ids == token_ids, text
        assert found.tokenizer.decode(token_ids) == text
    assert found.tokenizer.encode("a").ids[0] == 1
    assert make_token_bytes(found.tokenizer, found.definition) is not None


def test_gemma_merges_in_the_order_of_its_vocabulary(tmp_path: Path) -> None:
    """Its scores are meaningless, and it stores runs of spaces as spaces."""
    tokens = ["<unk>", "<s>", "</s>", "ab", "bc", "  ", "a", "b", "c", "▁"]
    metadata = LLAMA | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [-1000.0] * 10,
                        "tokenizer.ggml.token_type": [2, 3, 3, *[1] * 7],
                        "tokenizer.ggml.add_space_prefix": False}  # fmt: skip
    tokenizer = read_tokenizer_files(write_metadata(tmp_path / "m.gguf", metadata, "gemma3")).tokenizer
    assert tokenizer.encode("abc  a").tokens == ["<s>", "ab", "c", "▁▁", "a"]


def merged() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary like Gemma 4's, and its merges, none of which are of newlines and other text."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+|▁*[^\n▁]*"), "isolated")
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=800))
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    found = [trained.id_to_token(index) for index in range(trained.get_vocab_size())]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *found]
    merges = [(left, right) for left, right in json.loads(trained.to_str())["model"]["merges"]]
    return {token: index for index, token in enumerate(tokens)}, merges


def gemma4() -> dict[str, Any]:
    """What a file has of this tokenizer."""
    vocabulary, merges = merged()
    kinds = [3] * 7 + [4] * 2 + [6] * 256
    return {
        "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.tokens": list(vocabulary),
        "tokenizer.ggml.token_type": kinds + [1] * (len(vocabulary) - len(kinds)),
        "tokenizer.ggml.scores": [-1000.0] * len(vocabulary),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges], "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.unknown_token_id": 3, "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }  # fmt: skip


def test_gemma4_merges_as_its_file_says(tmp_path: Path) -> None:
    """Matches Transformers' Gemma tokenizer; the scores mean nothing."""
    vocabulary, merges = merged()
    original = transformers.GemmaTokenizer(vocab=vocabulary, merges=merges).backend_tokenizer
    original.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    original.add_tokens(["<think>", "</think>"])
    original.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 2)])
    found = read_tokenizer_files(write_metadata(tmp_path / "m.gguf", gemma4(), "gemma4"))
    check(found, original)
    assert found.tokenizer.encode("a\n\n  b").tokens[0] == "<bos>"
    assert found.tokenizer.encode("€").tokens == ["<bos>", "<0xE2>", "<0x82>", "<0xAC>"]


def test_gemma4_without_merges(tmp_path: Path) -> None:
    metadata = {key: value for key, value in gemma4().items() if not key.endswith("merges")}
    with pytest.raises(StartupError, match=r"m\.gguf: tokenizer\.ggml\.merges is missing.* gemma4 .*--tokenizer"):
        read_tokenizer_files(write_metadata(tmp_path / "m.gguf", metadata, "gemma4"))


@pytest.mark.parametrize(("rules", "told", "begins"), [
    ("llama-bpe", None, True), ("qwen2", None, False), ("qwen2", True, True), ("llama-bpe", False, False),
])  # fmt: skip
def test_what_goes_around_a_text(tmp_path: Path, rules: str, told: bool | None, begins: bool) -> None:
    """BOS and EOS tokens: files without the keys follow the default of their vocabulary type."""
    original = train(BYTE_LEVEL[rules])
    begin, end = original.token_to_id("<|im_start|>"), original.token_to_id("<|im_end|>")
    metadata = tokenizer_metadata(original, rules) | {
        "tokenizer.ggml.bos_token_id": begin, "tokenizer.ggml.eos_token_id": end, "tokenizer.ggml.add_eos_token": True,
    }  # fmt: skip
    metadata |= {} if told is None else {"tokenizer.ggml.add_bos_token": told}
    files = read_tokenizer_files(write_metadata(tmp_path / "m.gguf", metadata))
    token_ids = files.tokenizer.encode("a b").ids
    assert (token_ids[0] == begin, token_ids[-1]) == (begins, end)
    assert files.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def test_chat_templates(tmp_path: Path) -> None:
    metadata = tokenizer_metadata(train(BYTE_LEVEL["gpt-2"]), "gpt-2") | {
        "tokenizer.chat_template": "one", "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "two",
    }  # fmt: skip
    files = read_tokenizer_files(write_metadata(tmp_path / "m.gguf", metadata))
    assert files.chat_templates == {"default": "one", "tool_use": "two"}


BYTES: dict[str, Any] = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
                         "tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.ggml.merges": ["a b"]}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), [
    ({"tokenizer.ggml.model": "rwkv"}, "kind 'rwkv'.*--tokenizer"),
    ({"tokenizer.ggml.tokens": 3}, "kind 'gpt2'.*--tokenizer"),
    ({"tokenizer.ggml.pre": "of-tomorrow"}, "rules 'of-tomorrow'.*--tokenizer"),
    ({"tokenizer.ggml.merges": ["a b c"]}, "not all pairs"),
    ({"tokenizer.ggml.merges": ["a c"]}, "cannot be built"),
    ({"tokenizer.ggml.tokens": ["a", "b", "a"]}, "1 tokens have the same text as another"),
    ({"tokenizer.ggml.bos_token_id": 7}, "bos_token_id is 7, but there are only 3 tokens"),
    ({"tokenizer.ggml.model": "llama"}, "scores does not have a number for each token"),
])  # fmt: skip
def test_tokenizers_that_cannot_be_read(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """The error says what to do."""
    with pytest.raises(StartupError, match=rf"m\.gguf.*{message}"):
        read_tokenizer_files(write_metadata(tmp_path / "m.gguf", BYTES | changes))
