"""The prompts of a benchmark, by kind of dataset; the same seed yields the same prompts."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, NoReturn

from quire.bench.prompt_tokenizer import PromptTokenizer
from quire.bench.sample import Sample
from quire.bench.verse import verse
from quire.errors import StartupError
from quire.options.dataset import DatasetOptions

# Token limits for conversations: only ones that are likely to fit any model are used.
_LEAST_TOKENS, _MOST_PROMPT_TOKENS, _MOST_TOKENS = 4, 1024, 2048
# Less than the number of tokens in a line of verse; missing tokens of a prompt are drawn at random.
_LINE_TOKENS = 4
_ASK = "Go on with the poem that these lines are from:\n"

Tokenizer = Callable[[], PromptTokenizer]
Dataset = Callable[[DatasetOptions, Random, Tokenizer], Sequence[Sample]]


def samples(options: DatasetOptions, seed: int, tokenizer: Tokenizer) -> list[Sample]:
    """The samples, as many as requested, or as many as the file has.

    Args:
        tokenizer: creates the tokenizer, if the dataset needs one.

    Raises:
        StartupError: options contradict each other, or the file is missing or malformed.
    """
    source = Random(seed)  # noqa: S311  (prompts are no secrets)
    found = list(DATASETS[options.dataset_name](options, source, tokenizer))
    if options.oversample and found:
        found += source.choices(found, k=max(0, options.num_prompts - len(found)))
    return found[: options.num_prompts]


def _random(options: DatasetOptions, source: Random, tokenizer: Tokenizer) -> Sequence[Sample]:
    words = tokenizer()
    ratios = _range_ratios(options.random_range_ratio)
    outputs = options.output_len or options.random_output_len
    inputs = max(0, (options.input_len or options.random_input_len) - words.num_special_tokens)
    if options.random_prefix_len + inputs < 1:
        raise StartupError(
            f"--random-input-len leaves no room for a prompt after {words.num_special_tokens} special tokens. Increase "
            "it."
        )
    prefix = _tokens(words, options.random_prefix_len, source)
    return [
        _sample(words, prefix, _near(inputs, ratios[0], source, least=0 if prefix else 1),
                _near(outputs, ratios[1], source), source)
        for _ in range(options.num_prompts)
    ]  # fmt: skip


def _prefix_repetition(options: DatasetOptions, source: Random, tokenizer: Tokenizer) -> Sequence[Sample]:
    words, prefixes = tokenizer(), options.prefix_repetition_num_prefixes
    if options.num_prompts < prefixes:
        raise StartupError(
            f"--num-prompts {options.num_prompts} is less than --prefix-repetition-num-prefixes {prefixes}. Increase "
            "it."
        )
    heads = [_tokens(words, options.prefix_repetition_prefix_len, source) for _ in range(prefixes)]
    suffix = options.input_len or options.prefix_repetition_suffix_len
    outputs = options.output_len or options.prefix_repetition_output_len
    found = [
        _sample(words, heads[index * prefixes // options.num_prompts], suffix, outputs, source)
        for index in range(options.num_prompts)
    ]
    return found if options.disable_shuffle else _shuffled(found, source)


def _sonnet(options: DatasetOptions, source: Random, tokenizer: Tokenizer) -> Sequence[Sample]:
    words, lines = tokenizer(), _verse(options.dataset_path)
    length = max(1, (options.input_len or options.sonnet_input_len) - words.num_special_tokens)
    outputs = options.output_len or options.sonnet_output_len
    if options.sonnet_prefix_len >= length:
        raise StartupError(
            f"--sonnet-prefix-len {options.sonnet_prefix_len} must be less than --sonnet-input-len {length}."
        )
    prefix = words.encode(_ASK + "\n".join(_lines(lines, source, options.sonnet_prefix_len // _LINE_TOKENS + 1)))
    found = []
    for _ in range(options.num_prompts):
        further = words.encode("\n" + "\n".join(_lines(lines, source, length // _LINE_TOKENS + 1)))
        text, count = words.fit([*prefix[: options.sonnet_prefix_len], *further][:length], source)
        found.append(Sample(text, count + words.num_special_tokens, outputs))
    return found


def _sharegpt(options: DatasetOptions, source: Random, tokenizer: Tokenizer) -> Sequence[Sample]:
    path, words = _path(options), tokenizer()
    try:
        entries = json.loads(_read(path))
    except ValueError as error:
        raise StartupError(f"{path} is not JSON: {error}.") from error
    turns = [pair for entry in entries if (pair := _first_turns(entry))] if isinstance(entries, list) else []
    if not turns:
        raise StartupError(
            f"{path} has no conversations. Expected a JSON list of "
            '{"conversations": [{"value": "question"}, {"value": "answer"}]}.'
        )
    fixed, found = options.output_len or options.sharegpt_output_len, []
    for prompt, answer in turns if options.disable_shuffle else _shuffled(turns, source):
        count = len(words.encode(prompt, special_tokens=True))
        outputs = fixed or len(words.encode(answer))
        enough = count >= _LEAST_TOKENS and (fixed or outputs >= _LEAST_TOKENS)
        if enough and count <= _MOST_PROMPT_TOKENS and count + outputs <= _MOST_TOKENS:
            found.append(Sample(prompt, count, outputs))
        if len(found) == options.num_prompts:
            break
    if not found:
        raise StartupError(
            f"{path} has no conversation with a prompt of {_LEAST_TOKENS} to {_MOST_PROMPT_TOKENS} tokens and at most "
            f"{_MOST_TOKENS} tokens including the answer."
        )
    return found


def _custom(options: DatasetOptions, source: Random, tokenizer: Tokenizer) -> Sequence[Sample]:
    path = _path(options)
    if not options.custom_output_len:
        raise StartupError("--custom-output-len 0: expected at least 1, or -1 for the output_tokens of each line.")
    fixed = options.output_len or (options.custom_output_len if options.custom_output_len > 0 else None)
    lines = enumerate(_read(path).split("\n"), 1)  # JSON may contain Unicode's other line separators
    found = [_line_sample(path, number, line, fixed) for number, line in lines if line.strip()]
    if not found:
        raise StartupError(f"{path} is empty.")
    return found if options.disable_shuffle else _shuffled(found, source)


DATASETS: Mapping[str, Dataset] = MappingProxyType(
    {
        "random": _random,
        "prefix_repetition": _prefix_repetition,
        "sharegpt": _sharegpt,
        "custom": _custom,
        "sonnet": _sonnet,
    }
)


def _sample(words: PromptTokenizer, prefix: list[int], length: int, outputs: int, source: Random) -> Sample:
    """A sample whose prompt is a prefix followed by `length` random tokens."""
    text, count = words.fit(prefix + words.draw(length, source), source)
    return Sample(text, count + words.num_special_tokens, outputs)


def _tokens(words: PromptTokenizer, length: int, source: Random) -> list[int]:
    """Random tokens that survive decoding and encoding."""
    return words.encode(words.fit(words.draw(length, source), source)[0]) if length else []


def _near(length: int, ratio: float, source: Random, least: int = 1) -> int:
    low, high = math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio))
    return source.randint(max(least, low), max(least, high))


def _range_ratios(text: str) -> tuple[float, float]:
    """The ratios for inputs and for outputs."""
    with contextlib.suppress(ValueError, TypeError):
        given = json.loads(text)
        ratios = (given.get("input", 0.0), given.get("output", 0.0)) if isinstance(given, dict) else (given, given)
        if all(0 <= ratio < 1 for ratio in ratios):
            return ratios
    raise StartupError(
        f'--random-range-ratio {text}: expected a number from 0 to below 1, or {{"input": 0.3, "output": 0.5}}.'
    )


def _shuffled(items: Sequence[Any], source: Random) -> list[Any]:
    return source.sample(items, len(items))


def _lines(lines: Sequence[str], source: Random, count: int) -> Iterator[str]:
    """Random lines, possibly with repetitions."""
    return (source.choice(lines) for _ in range(count))


def _verse(path: str | None) -> Sequence[str]:
    lines = verse(path) if path is None else [line for line in _read(path).splitlines() if line.strip()]
    if not lines:
        raise StartupError(f"{path} has no lines.")
    return lines


def _path(options: DatasetOptions) -> str:
    if not options.dataset_path:
        raise StartupError(f"--dataset-name {options.dataset_name} needs a file: set --dataset-path FILE.")
    return options.dataset_path


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"--dataset-path {path} cannot be read: {error}.") from error


def _first_turns(entry: Any) -> tuple[str, str] | None:
    """The question and answer that a conversation begins with."""
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list) or len(turns) < 2:
        return None
    texts = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
    question, answer = texts
    return (question, answer) if isinstance(question, str) and isinstance(answer, str) else None


def _line_sample(path: str, number: int, line: str, fixed: int | None) -> Sample:
    wrong = partial(_wrong_line, path, number)
    try:
        item = json.loads(line)
    except ValueError as error:
        wrong(f"is not JSON: {error}.")
    if not isinstance(item, dict) or not isinstance(item.get("prompt"), str):
        wrong('needs a text "prompt".')
    outputs = fixed or item.get("output_tokens")
    if not isinstance(outputs, int) or outputs < 1:
        wrong('needs "output_tokens", an integer of at least 1; or set --custom-output-len for all lines.')
    return Sample(item["prompt"], 0, outputs)


def _wrong_line(path: str, number: int, fault: str) -> NoReturn:
    raise StartupError(f"{path}, line {number}: it {fault}")
