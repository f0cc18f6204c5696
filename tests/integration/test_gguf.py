"""`quire serve model.gguf`: one file provides model, configuration, tokenizer and chat template."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.support.gguf_files import tokenizer_metadata, write_gguf
from tests.support.stack import Stack, start_stack, stop_stack
from tests.support.tiny_models import make_model, reference_tokens

_TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
_SHAPE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A tokenizer that splits texts as GPT-2 does, as the file states."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    text = Path(__file__).read_text(encoding="utf-8")
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model = make_model(folder / "hf", "qwen3", vocab_size=tokenizer.get_vocab_size(), **_SHAPE)
    metadata = tokenizer_metadata(tokenizer, "gpt-2") | {"tokenizer.chat_template": _TEMPLATE}
    write_gguf(model, folder, lambda name: "Q6_K" if "attn_v" in name else "Q8_0", metadata)
    return folder


@pytest.fixture(scope="module")
def stack(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    running = start_stack(
        folder / "model.gguf", tmp_path_factory.mktemp("stack") / "log", "--dtype", "float32",
        "--kv-cache-memory-bytes", "64M",
    )  # fmt: skip
    try:
        running.wait_healthy()
        yield running
    finally:
        code = stop_stack(running)
    assert code == 0, running.log.read_text()


@pytest.fixture
def client(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none")


def test_completions(client: openai.OpenAI, stack: Stack, folder: Path, tokenizer: Tokenizer) -> None:
    """The tokens equal those of Transformers with the file's dequantized weights."""
    prompt = "from pathlib import"
    (expected,) = reference_tokens(folder / "reference", [tokenizer.encode(prompt).ids], 12)
    (model,) = client.models.list().data
    assert model.id == str(stack.model)
    answer = client.completions.create(
        model=model.id, prompt=prompt, max_tokens=12, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].text == tokenizer.decode(expected)


def test_chat(client: openai.OpenAI, stack: Stack) -> None:
    """Uses the file's chat template, and ends answers at the vocabulary's end tokens."""
    messages = [{"role": "user", "content": "hello"}]
    body = json.dumps({"messages": messages, "add_generation_prompt": False}).encode()
    request = urllib.request.Request(f"{stack.url}/tokenize", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        token_ids = json.load(response)["tokens"]
    answer = client.chat.completions.create(model=str(stack.model), messages=messages, max_tokens=8)  # type: ignore[arg-type]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(token_ids)
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_structured_output(client: openai.OpenAI, stack: Stack) -> None:
    """The engine, too, reads the vocabulary from the file."""
    answer = client.completions.create(
        model=str(stack.model), prompt="a", max_tokens=40, extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert answer.choices[0].text in ("yes", "no")


def test_the_summary_names_the_file(stack: Stack) -> None:
    log = stack.log.read_text()
    assert f"{stack.model} (Qwen3ForCausalLM, float32)" in log
