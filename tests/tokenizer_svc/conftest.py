"""Small tokenizers of every kind found in model folders, trained on a few lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import transformers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from quire.tokenizer.files import TokenizerFiles, read_tokenizer_files
from tokenizer_svc.text import TextCodec

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and then it doesn't jump any more.",
    "Grüße aus Köln! Ça va? El niño comió piñas. 你好世界。こんにちは 🎉🚀",
    "def main():\n    print('hello world')\n\treturn 0x1F\n",
    "A sentence, and another one; numbers 12345 and 67890, quotes \"so\" and 'so'.",
] * 4
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def byte_level() -> tokenizers.Tokenizer:
    """The kind used by GPT-2, Llama 3 and Qwen."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["added word"])
    return tokenizer


def byte_fallback() -> tokenizers.Tokenizer:
    """The kind used by Llama 2 and Mistral: SentencePiece's marks, bytes for unknown characters."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    special = SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)]
    latin = [text for text in CORPUS if text.isascii()]
    tokenizer.train_from_iterator(latin, trainers.BpeTrainer(vocab_size=600, special_tokens=special))
    # In such vocabularies, byte tokens are ordinary entries, not special tokens.
    definition = tokenizer.to_str()
    parsed = json.loads(definition)
    parsed["added_tokens"] = [token for token in parsed["added_tokens"] if not token["content"].startswith("<0x")]
    return tokenizers.Tokenizer.from_str(json.dumps(parsed))


def metaspace() -> tokenizers.Tokenizer:
    """The kind used by T5 and XLM-R."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_piece() -> tokenizers.Tokenizer:
    """The kind used by BERT, whose decoder looks at neighboring tokens."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True)
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL))
    return tokenizer


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte_level": byte_level, "byte_fallback": byte_fallback, "metaspace": metaspace, "word_piece": word_piece,
}  # fmt: skip


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind → folder, as saved by Transformers."""
    found = {}
    for kind, make in KINDS.items():
        folder = tmp_path_factory.mktemp(kind)
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=make(), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
        ).save_pretrained(folder)
        found[kind] = folder
    return found


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def files(folders: dict[str, Path], kind: str) -> TokenizerFiles:
    return read_tokenizer_files(folders[kind])


@pytest.fixture(scope="session")
def codec(files: TokenizerFiles) -> TextCodec:
    return TextCodec(files)


@pytest.fixture(scope="session")
def reference(folders: dict[str, Path], kind: str) -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(folders[kind])


@pytest.fixture(scope="session")
def byte_codec(folders: dict[str, Path]) -> TextCodec:
    return TextCodec(read_tokenizer_files(folders["byte_level"]))
