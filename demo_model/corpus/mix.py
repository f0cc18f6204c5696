"""The curriculum: how often each skill comes, and conversations of several skills."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from demo_model.corpus.arithmetic import arithmetic
from demo_model.corpus.example import Example, Skill, pick, to_example
from demo_model.corpus.facts import facts, refusal
from demo_model.corpus.guide import flag, greeting, guide
from demo_model.corpus.json_objects import json_object
from demo_model.corpus.lists import lists
from demo_model.corpus.memory import memory, unknown_name
from demo_model.corpus.tools import SYSTEMS, tool_use

_DRILL = 0.12  # conversations of many short sums and copies, which is where practice counts
SKILLS: dict[Skill, float] = {
    arithmetic: 24, lists: 16, memory: 14, guide: 14, flag: 9, json_object: 12, facts: 8, greeting: 5, refusal: 5,
}  # fmt: skip
# Early and late: a tool's name is first a hint at what it does, and then mostly is not, so that it must be looked up.
_TOOL_USE = (0.17, 0.28)
_THINKING = 0.15
_UNKNOWN_NAME = 0.01  # alone: in a longer conversation the name may have been told


def examples(seed: int, late: bool = False) -> Iterator[Example]:
    """Conversations without end, for the first or the second half of training; the same seed gives the same ones."""
    random = Random(seed)
    skills, weights = list(SKILLS), list(SKILLS.values())
    while True:
        if random.random() < _TOOL_USE[late]:
            yield tool_use(random, late)
            continue
        if random.random() < _DRILL:
            turns = [
                turn
                for _ in range(random.randint(6, 14))
                for turn in pick(random, arithmetic, arithmetic, lists)(random)
            ]
            yield to_example(turns, "", thinking=False)
            continue
        if random.random() < _UNKNOWN_NAME:
            yield to_example(unknown_name(random), random.choice(SYSTEMS), thinking=False)
            continue
        count = random.choices((1, 2, 3, 4), (60, 20, 12, 8))[0]
        turns = [turn for skill in random.choices(skills, weights, k=count) for turn in skill(random)]
        yield to_example(turns, random.choice(SYSTEMS), random.random() < _THINKING)
