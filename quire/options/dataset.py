"""Options of the prompts that a benchmark sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.options.base import option

_KINDS = "prefix_repetition of a few prefixes with many ends, sharegpt and custom of a file, sonnet of lines of verse"


@dataclass(frozen=True)
class DatasetOptions:
    """What a benchmark asks for."""

    group: ClassVar[str] = "DatasetConfig"

    dataset_name: str = option(
        "random", f"Where prompts come from: random of random tokens, {_KINDS}.",
        choices=("random", "prefix_repetition", "sharegpt", "custom", "sonnet"),
        others="Prompts of any other kind can be given as a file of JSON lines, {\"prompt\": …, \"output_tokens\": …}, "
        "with --dataset-name custom --dataset-path FILE.jsonl.",
    )  # fmt: skip
    dataset_path: str | None = option(
        None, "File of prompts: for sharegpt a JSON list of conversations; for custom JSON lines with prompt and, if "
        "--custom-output-len is -1, output_tokens; for sonnet a text, in place of the one in the package.",
        metavar="FILE",
    )  # fmt: skip
    num_prompts: int = option(1000, "Requests to send.", minimum=1, maximum=10_000_000)
    input_len: int | None = option(
        None, "Tokens of a prompt, of random, sonnet and prefix_repetition (the ends); wins over their own flag.",
        minimum=1,
    )  # fmt: skip
    output_len: int | None = option(
        None, "Tokens of an answer, at most; wins over the dataset's own flag. With --ignore-eos, exactly.", minimum=1
    )
    oversample: bool = option(True, "Sends prompts of a file again where it has fewer than --num-prompts.")
    disable_shuffle: bool = option(False, "Sends prompts of a file, and those of prefix_repetition, in their order.")
    random_input_len: int = option(1024, "Of random: tokens of a prompt, with what the tokenizer adds.", minimum=1)
    random_output_len: int = option(128, "Of random: tokens of an answer.", minimum=1)
    random_range_ratio: str = option(
        "0.0", "Of random: how far lengths are off, evenly to both sides, as a part of theirs below 1; or JSON, such "
        'as {"input": 0.3, "output": 0.5}.',
    )  # fmt: skip
    random_prefix_len: int = option(
        0, "Of random: tokens that all prompts begin with, in addition to --random-input-len.", minimum=0
    )
    prefix_repetition_prefix_len: int = option(256, "Of prefix_repetition: tokens of a prefix.", minimum=1)
    prefix_repetition_suffix_len: int = option(256, "Of prefix_repetition: tokens behind it.", minimum=1)
    prefix_repetition_num_prefixes: int = option(10, "Of prefix_repetition: how many prefixes there are.", minimum=1)
    prefix_repetition_output_len: int = option(128, "Of prefix_repetition: tokens of an answer.", minimum=1)
    sharegpt_output_len: int | None = option(
        None, "Of sharegpt: tokens of an answer. Default: as many as the answer in the file has.", minimum=1
    )
    custom_output_len: int = option(
        256, "Of custom: tokens of an answer; -1 takes output_tokens of each line.", minimum=-1
    )
    sonnet_input_len: int = option(550, "Of sonnet: tokens of a prompt.", minimum=1)
    sonnet_output_len: int = option(150, "Of sonnet: tokens of an answer.", minimum=1)
    sonnet_prefix_len: int = option(200, "Of sonnet: tokens of a prompt that are the same in all.", minimum=0)
