"""Trains the tokenizer: byte-level BPE in which a word is spelled the same at the start of a line and inside it.

Spaces and digits are tokens of their own. That costs length, and lets a model this small copy words and add numbers.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import tokenizers
import transformers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from demo_model.corpus.mix import examples

VOCAB_SIZE = 4096
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_MARKS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
]
_PIECES = r"\p{L}+|\d|\n+|[^\S\n]|[^\s\p{L}\d]+(?: [^\s\p{L}\d]+)*"
_TEXTS = 40_000
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def train_tokenizer(seed: int) -> transformers.PreTrainedTokenizerFast:
    """The tokenizer, with its chat template."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(_MARKS), special_tokens=_SPECIAL, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    texts = (
        str(message["content"]) for example in itertools.islice(examples(seed), _TEXTS) for message in example.messages
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([tokenizers.AddedToken(mark, special=False, normalized=False) for mark in _MARKS])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
