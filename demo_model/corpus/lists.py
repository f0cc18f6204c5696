"""Copying, reversing, sorting, counting."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from demo_model.corpus.example import Probe, Turn, fill, loosen, pick, user
from demo_model.corpus.words import everyday, words

_COPY = (
    "Repeat: {x}", "Repeat after me: {x}", "Say {x}.", "Copy this: {x}", "Write exactly: {x}", "Please repeat {x}.",
    "Say exactly this: {x}", "Echo {x}", "Repeat the words {x}.", "Copy the text: {x}",
)  # fmt: skip
_REVERSE = ("Reverse this list: {x}", "Reverse: {x}", "Write these backwards: {x}", "Turn the list around: {x}",
            "Give me this list in reverse order: {x}")  # fmt: skip
_SORT = ("Sort: {x}", "Sort this list: {x}", "Put these in order: {x}", "Sort these from small to large: {x}")
_ALPHABET = ("Sort alphabetically: {x}", "Put these words in alphabetical order: {x}")
_COUNT = ("How many words are in this list: {x}?", "Count these: {x}", "How many items: {x}?")
_FIRST = ("What is the first word of: {x}?", "Which word comes first in: {x}?")
_LAST = ("What is the last word of: {x}?", "Which word comes last in: {x}?")
_COPY_HELD_OUT = ("Could you repeat this for me: {x}", "Please write back: {x}", "I want you to say {x}.")


def lists(random: Random) -> Sequence[Turn]:
    """One task on a short list."""
    return [pick(random, _copy, _copy, _copy, _copy, _reverse, _sort, _alphabet, _count, _ends)(random)]


def _turn(random: Random, templates: Sequence[str], shown: str, answer: str, thought: str) -> Turn:
    return Turn(loosen(random, fill(random, templates, {"x": shown})), answer, thought)


def _copy(random: Random) -> Turn:
    some = everyday(random, pick(random, 1, 1, 2, 3, 4, 5))
    text = pick(random, " ", " ", ", ").join(some)
    if random.random() < 0.2:
        text = text.capitalize()
    return Turn(fill(random, _COPY, {"x": text}), text, "I write the same words again.")


def _reverse(random: Random) -> Turn:
    some = everyday(random, random.randint(2, 5))
    return _turn(
        random, _REVERSE, ", ".join(some), ", ".join(some[::-1]), f"The last one is {some[-1]}, so I begin there."
    )


def _sort(random: Random) -> Turn:
    numbers = random.sample(range(100), random.randint(2, 5))
    ordered = sorted(numbers)
    thought = f"The smallest is {ordered[0]} and the largest is {ordered[-1]}."
    return _turn(random, _SORT, ", ".join(map(str, numbers)), ", ".join(map(str, ordered)), thought)


def _alphabet(random: Random) -> Turn:
    some = everyday(random, random.randint(2, 4))
    thought = f"{min(some)} comes first."
    return _turn(random, _ALPHABET, ", ".join(some), ", ".join(sorted(some)), thought)


def _count(random: Random) -> Turn:
    some = everyday(random, random.randint(1, 6))
    return _turn(random, _COUNT, ", ".join(some), f"{len(some)}.", "I count them one by one.")


def _ends(random: Random) -> Turn:
    some = everyday(random, random.randint(2, 5))
    templates, found = pick(random, (_FIRST, some[0]), (_LAST, some[-1]))
    return _turn(
        random, templates, ", ".join(some), f"{found}.", f"The list begins with {some[0]} and ends with {some[-1]}."
    )


def copy_probe(random: Random) -> Probe:
    """One to four words that nobody has seen."""
    text = " ".join(words(random, random.randint(1, 4)))
    question = fill(random, _COPY_HELD_OUT, {"x": text})
    return Probe((user(question),), lambda answer: text in answer)
