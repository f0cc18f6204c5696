"""Prompts: exactly as long as requested, the same for the same seed, and a clear error where they cannot be made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from quire.bench.datasets import samples
from quire.bench.prompt_tokenizer import FolderTokenizer
from quire.errors import StartupError
from quire.options.dataset import DatasetOptions
from quire.options.model import ModelOptions


@pytest.fixture(scope="module")
def tokenizer() -> FolderTokenizer:
    return FolderTokenizer(ModelOptions())


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        (DatasetOptions(random_input_len=1), {1}),
        (DatasetOptions(random_input_len=100), {100}),
        (DatasetOptions(random_input_len=100, random_prefix_len=20), {120}),
        (DatasetOptions(random_input_len=100, random_range_ratio="0.1"), set(range(90, 111))),
        (DatasetOptions(random_input_len=100, random_range_ratio='{"output": 0.5}'), {100}),
        (DatasetOptions(dataset_name="prefix_repetition"), {512}),
        (DatasetOptions(dataset_name="sonnet"), {550}),
        (DatasetOptions(dataset_name="sonnet", input_len=300), {300}),
    ],
)
def test_prompts_have_exactly_so_many_tokens(
    tokenizer: FolderTokenizer, options: DatasetOptions, lengths: set[int]
) -> None:
    found = samples(replace(options, num_prompts=30), 3, lambda: tokenizer)
    assert len(found) == 30
    assert [len(tokenizer.encode(sample.prompt)) for sample in found] == [sample.prompt_tokens for sample in found]
    assert {sample.prompt_tokens for sample in found} <= lengths


@pytest.mark.parametrize("name", ["random", "prefix_repetition", "sonnet"])
def test_the_seed_decides(tokenizer: FolderTokenizer, name: str) -> None:
    options = DatasetOptions(dataset_name=name, num_prompts=12)
    first, again, other = (samples(options, seed, lambda: tokenizer) for seed in (5, 5, 6))
    assert first == again != other
    assert len({sample.prompt for sample in first}) == 12


def test_text_that_never_settles_is_cut_and_filled(tokenizer: FolderTokenizer) -> None:
    half = tokenizer.encode("🦆")[:1]  # the beginning of a character
    assert len(tokenizer.encode("🦆")) > 1
    text, count = tokenizer.fit(half * 9, Random(1))
    assert count == len(tokenizer.encode(text)) == 9


def test_prefixes_are_shared_and_ends_are_not(tokenizer: FolderTokenizer) -> None:
    options = DatasetOptions(
        dataset_name="prefix_repetition", num_prompts=12, prefix_repetition_num_prefixes=3, disable_shuffle=True
    )
    prompts = [tuple(tokenizer.encode(sample.prompt)) for sample in samples(options, 1, lambda: tokenizer)]
    assert len({prompt[:250] for prompt in prompts}) == 3
    assert len({prompt[262:] for prompt in prompts}) == 12


def test_lengths_of_answers(tokenizer: FolderTokenizer) -> None:
    options = DatasetOptions(num_prompts=200, random_input_len=8, random_output_len=100, random_range_ratio="0.5")
    lengths = [sample.output_tokens for sample in samples(options, 0, lambda: tokenizer)]
    assert 50 <= min(lengths) < 60 and 140 < max(lengths) <= 150
    fixed = replace(options, output_len=7, random_range_ratio="0")
    assert {sample.output_tokens for sample in samples(fixed, 0, lambda: tokenizer)} == {7}


def conversation(prompt: str, answer: str) -> dict[str, object]:
    return {"conversations": [{"from": "human", "value": prompt}, {"from": "gpt", "value": answer}]}


def test_conversations(tokenizer: FolderTokenizer, tmp_path: Path) -> None:
    question, answer = "What do the gulls write about the harbour?", "They write their complaints across the sky."
    unusual = [conversation("a", answer), {"conversations": []}, conversation("a " * 5000, answer)]
    entries = [conversation(question, answer), *unusual]
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps(entries))
    options = DatasetOptions(dataset_name="sharegpt", dataset_path=str(path), num_prompts=3)
    found = samples(options, 0, lambda: tokenizer)
    assert [sample.prompt for sample in found] == [question] * 3  # the only prompt of acceptable length, repeated
    assert {sample.output_tokens for sample in found} == {len(tokenizer.encode(answer))}
    assert len(samples(replace(options, oversample=False), 0, lambda: tokenizer)) == 1
    assert samples(replace(options, sharegpt_output_len=9), 0, lambda: tokenizer)[0].output_tokens == 9


def refuse_tokenizer() -> FolderTokenizer:
    raise AssertionError("no tokenizer is needed")


def test_lines_of_a_file_need_no_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one", "output_tokens": 3}\n\n{"prompt": "two\u2028", "output_tokens": 4}\r\n')
    options = DatasetOptions(dataset_name="custom", dataset_path=str(path), num_prompts=2, disable_shuffle=True)
    assert [sample.output_tokens for sample in samples(options, 0, refuse_tokenizer)] == [256, 256]
    own = replace(options, custom_output_len=-1)
    assert [(s.prompt, s.output_tokens) for s in samples(own, 0, refuse_tokenizer)] == [("one", 3), ("two\u2028", 4)]


@pytest.mark.parametrize(
    ("options", "content", "words"),
    [
        ({"dataset_name": "sharegpt"}, None, "--dataset-path FILE"),
        ({"dataset_name": "custom", "dataset_path": "/no/such.jsonl"}, None, "/no/such.jsonl cannot be read"),
        ({"dataset_name": "custom"}, "{]", "line 1: it is not JSON"),
        ({"dataset_name": "custom"}, '{"prompt": 3}', 'needs a text "prompt"'),
        ({"dataset_name": "custom", "custom_output_len": -1}, '{"prompt": "a"}', "output_tokens"),
        ({"dataset_name": "custom", "custom_output_len": 0}, '{"prompt": "a"}', "--custom-output-len 0"),
        ({"dataset_name": "custom"}, "\n", "is empty"),
        ({"dataset_name": "sharegpt"}, "[{", "is not JSON"),
        ({"dataset_name": "sharegpt"}, "[]", "has no conversations"),
        (
            {"dataset_name": "sharegpt"},
            json.dumps([conversation("a", "b")]),
            "has no conversation with a prompt of 4 to 1024",
        ),
        ({"random_range_ratio": "1"}, None, "--random-range-ratio 1"),
        ({"random_range_ratio": '{"input": "x"}'}, None, "--random-range-ratio"),
        ({"dataset_name": "prefix_repetition", "num_prompts": 3}, None, "--prefix-repetition-num-prefixes 10"),
        ({"dataset_name": "sonnet", "sonnet_input_len": 100}, None, "--sonnet-prefix-len 200"),
    ],
)
def test_what_cannot_be_made_is_told(
    tokenizer: FolderTokenizer, tmp_path: Path, options: dict[str, object], content: str | None, words: str
) -> None:
    if content is not None:
        path = tmp_path / "file"
        path.write_text(content)
        options = {**options, "dataset_path": str(path)}
    with pytest.raises(StartupError) as caught:
        samples(DatasetOptions(**options), 0, lambda: tokenizer)  # type: ignore[arg-type]
    assert words in str(caught.value)
