"""Adapters through the whole stack: two engines, the OpenAI SDK, and Transformers on merged weights as reference."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest
import torch
import transformers

from tests.support.lora import MadeAdapter, merge, write_adapter
from tests.support.stack import ROOT, Stack, start_stack, stop_stack
from tests.support.waiting import WAIT_SECONDS

pytestmark = pytest.mark.slow

PROMPTS = ("What is 17 + 25?", "My name is Clara.", "Write JSON with the fields name, age: Maria, 31.")
SHAPES = {
    f"model.layers.{layer}.{module}": shape
    for layer in (0, 3, 5)
    for module, shape in {
        "self_attn.q_proj": (256, 256), "self_attn.v_proj": (128, 256), "self_attn.o_proj": (256, 256),
        "mlp.gate_proj": (768, 256), "mlp.down_proj": (256, 768),
    }.items()
}  # fmt: skip
TOKENS = 16
BASE = ROOT / "demo_model/quire-demo"


@dataclass
class Fleet:
    stack: Stack
    client: openai.OpenAI
    adapters: dict[str, MadeAdapter]

    def ask(self, model: str, prompt: str) -> str:
        answer = self.client.completions.create(
            model=model, prompt=prompt, max_tokens=TOKENS, temperature=0, extra_body={"ignore_eos": True}
        )
        assert answer.model == model
        return answer.choices[0].text

    def call(self, path: str, **body: str) -> httpx.Response:
        return httpx.post(f"{self.stack.url}/v1/{path}_lora_adapter", json=body, timeout=60)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("adapters")
    adapters = {name: write_adapter(folder / name, SHAPES, seed=seed, size=0.5) for seed, name in enumerate("abc")}
    stack = start_stack(
        None, folder / "serve.log", "--dtype", "float32", "--engines", "2", "--enable-lora", "--max-loras", "2",
        "--max-cpu-loras", "3", "--lora-modules", f"a={folder / 'a'}", f'{{"name": "b", "path": "{folder / "b"}"}}',
        "--allow-runtime-lora-updating", "--allowed-lora-root", str(folder), "--max-num-seqs", "4",
    )  # fmt: skip
    try:
        stack.wait_healthy()
        yield Fleet(stack, openai.OpenAI(base_url=f"{stack.url}/v1", api_key="unused"), adapters)
    finally:
        stop_stack(stack)


def reference(folder: Path) -> list[str]:
    """The outputs of Transformers for the prompts."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    found = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        output = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)
        found.append(tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True))
    return found


def test_answers_are_those_of_merged_weights(fleet: Fleet, tmp_path: Path) -> None:
    """Concurrent requests on both engines, for more adapters than there are slots."""
    assert fleet.call("load", lora_name="c", lora_path=str(fleet.adapters["c"].folder)).status_code == 200
    cards = {card.id: card for card in fleet.client.models.list().data}
    assert [getattr(cards[name], "parent", None) for name in ("quire-demo", "a", "b", "c")] == [
        None, "quire-demo", "quire-demo", "quire-demo",
    ]  # fmt: skip
    names = ["quire-demo", "a", "b", "c"]
    asked = [(name, prompt) for prompt in PROMPTS for name in names] * 2
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda pair: (pair, fleet.ask(*pair)), asked))
    texts: dict[tuple[str, str], set[str]] = {}
    for pair, text in answers:
        texts.setdefault(pair, set()).add(text)
    for name in names:
        adapter = fleet.adapters.get(name)
        base = merge(BASE, adapter, tmp_path / name) if adapter else BASE
        for prompt, wanted in zip(PROMPTS, reference(base), strict=True):
            assert texts[name, prompt] == {wanted}
    assert len({next(iter(texts[name, PROMPTS[0]])) for name in names}) == 4


def test_an_engine_that_dies_gets_its_adapters_back(fleet: Fleet) -> None:
    if fleet.call("load", lora_name="d", lora_path=str(fleet.adapters["c"].folder)).status_code != 200:
        pytest.fail("the adapter is not loaded")
    wanted = fleet.ask("d", PROMPTS[0])
    victim = fleet.stack.children()["engine"]
    os.kill(victim, signal.SIGKILL)
    log, deadline = fleet.stack.log, time.monotonic() + 2 * WAIT_SECONDS
    while fleet.ask(
        "d", PROMPTS[0]
    ) == wanted and "has loaded the adapter d, as the other workers have" not in _all_logs(log):
        assert time.monotonic() < deadline, "the new engine has no adapter"
        time.sleep(0.5)
    assert fleet.ask("d", PROMPTS[0]) == wanted
    gone = fleet.call("unload", lora_name="d")
    assert gone.status_code == 200
    with pytest.raises(openai.NotFoundError):
        fleet.ask("d", PROMPTS[0])


def _all_logs(log: Path) -> str:
    """The stack's output, and the log files that it names."""
    text = log.read_text()
    files = [Path(word) for word in text.split() if word.endswith(".log")]
    return text + "".join(file.read_text() for file in files if file.exists())


def test_what_is_outside_of_the_root_or_broken_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    outside = write_adapter(tmp_path / "outside", SHAPES)
    refused = fleet.call("load", lora_name="x", lora_path=str(outside.folder))
    assert refused.status_code == 400
    assert "--allowed-lora-root" in refused.json()["error"]["message"]
    inside = fleet.adapters["a"].folder.parent / "broken"
    inside.mkdir()
    refused = fleet.call("load", lora_name="x", lora_path=str(inside))
    assert refused.status_code == 400
    assert "adapter_config.json" in refused.json()["error"]["message"]
    assert "x" not in {card.id for card in fleet.client.models.list().data}


def test_metrics_and_streams(fleet: Fleet) -> None:
    stream = fleet.client.chat.completions.create(
        model="a", messages=[{"role": "user", "content": "Hello!"}], max_tokens=8, stream=True
    )
    assert {chunk.model for chunk in stream} == {"a"}
    text = httpx.get(f"{fleet.stack.url}/metrics").text
    assert 'vllm:lora_requests_info{max_lora="2"' in text
