"""Scores a model on held-out prompts, greedily: `python -m demo_model.evaluate FOLDER`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
import transformers

from demo_model.corpus import arithmetic, guide, json_objects, lists, memory, tools
from demo_model.corpus.example import Probe

_SEED = 123_456_789  # no training seed
_MAX_TOKENS = 128
_BATCH = 64


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


class Answers:
    """Greedy answers by Transformers, in batches."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def all(self, some: list[Probe]) -> Iterator[tuple[str, bool]]:
        """(text, whether it ended by itself) of each."""
        for start in range(0, len(some), _BATCH):
            yield from self._batch(some[start : start + _BATCH])

    def _batch(self, some: list[Probe]) -> Iterator[tuple[str, bool]]:
        prompts = [
            self._tokenizer.apply_chat_template(
                list(probe.messages), tools=list(probe.tools) or None, add_generation_prompt=True, tokenize=False
            )
            for probe in some
        ]
        inputs = self._tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.inference_mode():
            outputs = self._model.generate(
                inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=_MAX_TOKENS, do_sample=False
            )
        for row in outputs[:, inputs.input_ids.shape[1] :]:
            ended = bool((row == self._tokenizer.eos_token_id).any())
            yield self._tokenizer.decode(row, skip_special_tokens=True).strip(), ended


def evaluate(folder: Path) -> list[Score]:
    """The scores of all kinds."""
    answers, scores = Answers(folder), []
    for kind, (goal, some) in probes().items():
        judged = [(probe, text, ended) for probe, (text, ended) in zip(some, answers.all(some), strict=True)]
        wrong = [(probe, text) for probe, text, _ in judged if not probe.judge(text)]
        misses = tuple((str(probe.messages[-1]["content"]), text) for probe, text in wrong[:5])
        ended = sum(done for _, _, done in judged)
        scores.append(Score(kind, goal, len(some), len(some) - len(wrong), ended, misses))
    return scores


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
    parser.add_argument("--misses", action="store_true", help="shows some wrong answers of each kind")
    arguments = parser.parse_args()
    scores = evaluate(arguments.folder)
    print(table(scores))
    if arguments.misses:
        for score in scores:
            for prompt, text in score.misses:
                print(f"{score.kind}\n  {prompt!r}\n  {text!r}")


if __name__ == "__main__":
    main()
