"""Copying, reversing, sorting, counting."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from demo_model.corpus.example import Probe, Turn, fill, loosen, pick, user
from demo_model.corpus.words import everyday, words

_PLEASE = "[|||Please |Now |Can you |Could you |I want you to ]"
_COPY = (
    _PLEASE + "[repeat|say|copy|write|echo|print|type|write down|say again|read out|answer][: {x}|: {x}| {x}.]",
    _PLEASE + "[repeat|say|copy|write|echo|print|type|send][| back| out| again][| to me| after me]: {x}",
    _PLEASE + "[repeat|say|copy|write|echo|print] [[|exactly ]this|these words|the [words|text]|this text][:|] {x}",
    _PLEASE + "[repeat|copy|echo|write] [the words|the text|this] {x}[.|, please.]",
)
_REVERSE = (
    _PLEASE + "[reverse|turn around|flip][| this list| the list| these| these words]: {x}",
    _PLEASE + "[write|say|give me|put] [these|this list|the list] [backwards|in reverse order]: {x}",
)  # fmt: skip
_SORT = (_PLEASE + "[sort|order][| this list| these| these numbers][| from small to large]: {x}",
         _PLEASE + "put [these|the numbers|this list] in order: {x}")  # fmt: skip
_ALPHABET = (_PLEASE + "sort [alphabetically|by alphabet|these words|these words alphabetically]: {x}",
             _PLEASE + "put [these words|these|the words] in alphabetical order: {x}")  # fmt: skip
_COUNT = (
    "How many [words|items|things] are [in this list|here|in]: {x}?",
    _PLEASE + "count [these|the words|this list]: {x}",
)
_FIRST = ("What is the first word of: {x}?", "Which word comes first in: {x}?")
_LAST = ("What is the last word of: {x}?", "Which word comes last in: {x}?")
_COPY_HELD_OUT = ("Repeat this for me: {x}", "Please copy what I write: {x}", "I want to hear you say {x}.")


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
    question = fill(random, _COPY, {"x": text})
    return Turn(
        question[:1].upper() + question[1:] if random.random() < 0.7 else question,
        text,
        "I write the same words again.",
    )


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
