"""Scores a model on held-out prompts, greedily: `python -m demo_model.evaluate FOLDER`, or as a server answers them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Protocol

import httpx
import torch
import transformers

from demo_model.corpus import arithmetic, guide, json_objects, lists, memory, tools
from demo_model.corpus.example import Probe
from demo_model.corpus.mix import examples
from demo_model.dataset import Encoded, Encoder

_SEED = 123_456_789  # no training seed
_MAX_TOKENS = 128
_BATCH = 64
_CONVERSATIONS = 400  # of which the perplexity is taken
_TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Score:
    """How a model did on one kind of prompt."""

    kind: str
    goal: float
    prompts: int
    right: int
    ended: int  # by themselves, with the end-of-sequence token
    misses: tuple[tuple[str, str], ...]  # (prompt, answer) of some


def _some(make: Callable[[Random], Probe], count: int) -> list[Probe]:
    random = Random(_SEED)
    return [make(random) for _ in range(count)]


def probes() -> dict[str, tuple[float, list[Probe]]]:
    """Kind → (goal, held-out prompts)."""
    return {
        "greetings and Quire": (0.95, guide.probes()),
        "arithmetic, two numbers up to 50": (0.90, _some(arithmetic.probe, 300)),
        "recall of a name": (0.90, _some(memory.name_probe, 200)),
        "copying unseen words": (0.90, _some(lists.copy_probe, 200)),
        "valid JSON with the fields asked for": (0.95, _some(json_objects.probe, 200)),
        "right tool and arguments, unseen names": (0.80, _some(tools.probe, 200)),
    }


class Answers(Protocol):
    """A model that answers, greedily and in batches."""

    def texts(self, prompts: list[str]) -> list[tuple[str, bool]]:
        """(text, whether it ended by itself) of each."""
        ...

    def logprobs(self, token_ids: list[int]) -> list[float]:
        """What each token but the first has, behind those before it."""
        ...


class OfTransformers:
    """By Transformers, in float32."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def texts(self, prompts: list[str]) -> list[tuple[str, bool]]:
        """See Answers.texts."""
        inputs = self._tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        self._tokenizer.backend_tokenizer.no_padding()  # it would stay, also for conversations
        with torch.inference_mode():
            outputs = self._model.generate(
                inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=_MAX_TOKENS, do_sample=False
            )
        rows = outputs[:, inputs.input_ids.shape[1] :]
        return [
            (self._tokenizer.decode(row, skip_special_tokens=True), bool((row == self._tokenizer.eos_token_id).any()))
            for row in rows
        ]

    def logprobs(self, token_ids: list[int]) -> list[float]:
        """See Answers.logprobs."""
        inputs = torch.tensor([token_ids])
        with torch.inference_mode():
            found = self._model(inputs).logits[0, :-1].log_softmax(-1)
        return [float(value) for value in found.gather(-1, inputs[0, 1:, None])[:, 0]]


class OfServer:
    """By a server of OpenAI's interface, which runs the model in whatever form."""

    def __init__(self, url: str) -> None:
        """
        Args:
            url: as clients have it, such as http://127.0.0.1:8000/v1.
        """
        self._client = httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS)

    def texts(self, prompts: list[str]) -> list[tuple[str, bool]]:
        """See Answers.texts."""
        choices = self._complete(prompt=prompts, max_tokens=_MAX_TOKENS)
        return [(choice["text"], choice["finish_reason"] == "stop") for choice in choices]

    def logprobs(self, token_ids: list[int]) -> list[float]:
        """See Answers.logprobs."""
        (choice,) = self._complete(prompt=token_ids, max_tokens=1, prompt_logprobs=0)
        found = zip(token_ids[1:], choice["prompt_logprobs"][1:], strict=True)
        return [float(position[str(token)]["logprob"]) for token, position in found]

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()

    def _complete(self, **fields: Any) -> list[dict[str, Any]]:
        """In the order of the prompts."""
        body = {"temperature": 0, "add_special_tokens": False, **fields}
        response = self._client.post("/completions", json=body)
        choices: list[dict[str, Any]] = response.raise_for_status().json()["choices"]
        return sorted(choices, key=lambda choice: choice["index"])


def answer(answers: Answers, tokenizer: Any, some: list[Probe]) -> Iterator[tuple[str, bool]]:
    """(text, whether it ended by itself) of each."""
    for start in range(0, len(some), _BATCH):
        prompts = [
            tokenizer.apply_chat_template(
                list(probe.messages), tools=list(probe.tools) or None, add_generation_prompt=True, tokenize=False
            )
            for probe in some[start : start + _BATCH]
        ]
        for text, ended in answers.texts(prompts):
            yield text.strip(), ended


def evaluate(answers: Answers, tokenizer: Any) -> list[Score]:
    """The scores of all kinds."""
    scores = []
    for kind, (goal, some) in probes().items():
        found = answer(answers, tokenizer, some)
        judged = [(probe, text, ended) for probe, (text, ended) in zip(some, found, strict=True)]
        wrong = [(probe, text) for probe, text, _ in judged if not probe.judge(text)]
        misses = tuple((str(probe.messages[-1]["content"]), text) for probe, text in wrong[:5])
        ended = sum(done for _, _, done in judged)
        scores.append(Score(kind, goal, len(some), len(some) - len(wrong), ended, misses))
    return scores


def perplexity(answers: Answers, tokenizer: Any, conversations: int = _CONVERSATIONS) -> float:
    """Of the assistant's tokens in so many held-out ones."""
    held_out = Encoder(tokenizer).encode(list(islice(examples(_SEED, late=True), conversations)))
    logprobs = [value for one in held_out for value in _learned(one, answers)]
    return math.exp(-sum(logprobs) / len(logprobs))


def _learned(conversation: Encoded, answers: Answers) -> list[float]:
    found = answers.logprobs(conversation.token_ids.tolist())
    return [value for value, learned in zip(found, conversation.learned[1:], strict=True) if learned]


def table(scores: list[Score]) -> str:
    """The scores as Markdown."""
    prompts, ended = sum(score.prompts for score in scores), sum(score.ended for score in scores)
    rows = [(score.kind, score.prompts, score.right, score.goal) for score in scores]
    rows.append(("ends by itself (all of the above)", prompts, ended, 0.99))
    lines = [f"| {kind} | {number} | {right / number:.1%} | {goal:.0%} |" for kind, number, right, goal in rows]
    return "\n".join(("| held-out prompts | number | right | goal |", "|---|---|---|---|", *lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", help="of a server that has the model, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--misses", action="store_true", help="shows some wrong answers of each kind")
    arguments = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.folder, padding_side="left")
    answers = OfServer(arguments.url) if arguments.url else OfTransformers(arguments.folder, tokenizer)
    scores = evaluate(answers, tokenizer)
    print(table(scores))
    print(f"\nPerplexity of the assistant's tokens in held-out conversations: {perplexity(answers, tokenizer):.4f}")
    if arguments.misses:
        for score in scores:
            for prompt, text in score.misses:
                print(f"{score.kind}\n  {prompt!r}\n  {text!r}")


if __name__ == "__main__":
    main()
