"""Options of the prompts that a benchmark sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.options.base import option

_KINDS = (
    "prefix_repetition (a few prefixes with many endings), sharegpt and custom (from a file), sonnet (lines of verse)"
)


@dataclass(frozen=True)
class DatasetOptions:
    """Prompts of a benchmark."""

    group: ClassVar[str] = "DatasetConfig"

    dataset_name: str = option(
        "random", f"Where prompts come from: random (random tokens), {_KINDS}.",
        choices=("random", "prefix_repetition", "sharegpt", "custom", "sonnet"),
        others='Provide any other prompts as a file of JSON lines, {"prompt": …, "output_tokens": …}, with '
        "--dataset-name custom --dataset-path FILE.jsonl.",
    )  # fmt: skip
    dataset_path: str | None = option(
        None, "File of prompts: for sharegpt, a JSON list of conversations; for custom, JSON lines with prompt and, if "
        "--custom-output-len is -1, output_tokens; for sonnet, a text to use instead of the one in the package.",
        metavar="FILE",
    )  # fmt: skip
    num_prompts: int = option(1000, "Number of requests to send.", minimum=1, maximum=10_000_000)
    input_len: int | None = option(
        None, "Tokens per prompt for random, sonnet and prefix_repetition (there, of the ending); overrides the "
        "dataset's own flag.",
        minimum=1,
    )  # fmt: skip
    output_len: int | None = option(
        None,
        "Maximum number of tokens per answer; overrides the dataset's own flag. With --ignore-eos, the exact number.",
        minimum=1,
    )
    oversample: bool = option(True, "Repeats prompts of a file that has fewer than --num-prompts.")
    disable_shuffle: bool = option(False, "Keeps the order of prompts from a file, and of those of prefix_repetition.")
    random_input_len: int = option(
        1024, "For random: tokens per prompt, including special tokens that the tokenizer adds.", minimum=1
    )
    random_output_len: int = option(128, "For random: tokens per answer.", minimum=1)
    random_range_ratio: str = option(
        "0.0", "For random: how much lengths vary, uniformly in both directions, as a fraction below 1; or JSON, such "
        'as {"input": 0.3, "output": 0.5}.',
    )  # fmt: skip
    random_prefix_len: int = option(
        0, "For random: length of a prefix that all prompts share, in addition to --random-input-len.", minimum=0
    )
    prefix_repetition_prefix_len: int = option(256, "For prefix_repetition: tokens per prefix.", minimum=1)
    prefix_repetition_suffix_len: int = option(
        256, "For prefix_repetition: tokens per prompt after the prefix.", minimum=1
    )
    prefix_repetition_num_prefixes: int = option(10, "For prefix_repetition: number of prefixes.", minimum=1)
    prefix_repetition_output_len: int = option(128, "For prefix_repetition: tokens per answer.", minimum=1)
    sharegpt_output_len: int | None = option(
        None, "For sharegpt: tokens per answer. Default: the length of the answer in the file.", minimum=1
    )
    custom_output_len: int = option(
        256, "For custom: tokens per answer; -1 takes output_tokens from each line.", minimum=-1
    )
    sonnet_input_len: int = option(550, "For sonnet: tokens per prompt.", minimum=1)
    sonnet_output_len: int = option(150, "For sonnet: tokens per answer.", minimum=1)
    sonnet_prefix_len: int = option(
        200, "For sonnet: tokens at the beginning of a prompt that are the same in all prompts.", minimum=0
    )
