"""The models in the box: complete, small, as good as their card says, and the same by Quire and by Transformers."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest
import torch
import transformers

from demo_model.evaluate import OfTransformers, answer, probes
from tests.support.run_engine import GREEDY, run, running_engine, tokens

pytestmark = pytest.mark.slow

FOLDER = Path(str(resources.files("demo_model")))
MODELS = ("quire-demo", "quire-demo-draft")
QUESTIONS = ("Hello!", "What is Quire?", "What is 17 + 25?", "Repeat: plinsot gruk", "What does --port do?")


@pytest.mark.parametrize("name", MODELS)
def test_folder(name: str) -> None:
    folder = FOLDER / name
    parameters = transformers.AutoModelForCausalLM.from_pretrained(folder).num_parameters()
    assert (4_000_000 if name == "quire-demo" else 800_000) < parameters < 12_000_000
    assert (folder / "chat_template.jinja").read_text() == (FOLDER / "chat_template.jinja").read_text()


def test_size() -> None:
    assert sum(file.stat().st_size for name in MODELS for file in (FOLDER / name).iterdir()) < 25_000_000


def test_draft_has_the_same_tokenizer() -> None:
    vocabularies = [transformers.AutoTokenizer.from_pretrained(FOLDER / name).get_vocab() for name in MODELS]
    assert vocabularies[0] == vocabularies[1]


@pytest.mark.parametrize("name", MODELS)
def test_quire_and_transformers_agree(name: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER / name)
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER / name, dtype=torch.float32).eval()
    prompts, expected = [], []
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        count = inputs["input_ids"].shape[1]
        with torch.inference_mode():
            output = model.generate(**inputs, max_new_tokens=GREEDY.max_tokens, do_sample=False, eos_token_id=-1)
        prompts.append(inputs["input_ids"][0].tolist())
        expected.append(output[0, count:].tolist())
    with running_engine(FOLDER / name) as engine:
        assert tokens(run(engine, prompts)) == expected


@pytest.fixture(scope="module")
def demo() -> tuple[OfTransformers, transformers.PreTrainedTokenizerFast]:
    folder = FOLDER / "quire-demo"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    return OfTransformers(folder, tokenizer), tokenizer


@pytest.mark.parametrize("kind", probes())
def test_a_few_of_each_score(demo: tuple[OfTransformers, transformers.PreTrainedTokenizerFast], kind: str) -> None:
    """The card has the whole table; a few prompts of each kind show that these are the weights it is about."""
    goal, some = probes()[kind]
    chosen = some[:: max(1, len(some) // 15)]
    model, tokenizer = demo
    answers = answer(model, tokenizer, chosen)
    right = sum(probe.judge(text) for probe, (text, _) in zip(chosen, answers, strict=True))
    assert right / len(chosen) >= goal - 0.1
