"""Sums, differences and small products of two numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from demo_model.corpus.example import Probe, Turn, fill, loosen, pick, user

_ASK = (
    "{e}",
    "{e} = ?",
    "{e} =",
    "{e}?",
    "[What is|What's|How much is|And] {e}?",
    "[|Please |Now |Can you |I want you to ][calculate|compute|solve|work out|give me|find|do] {e}[.|, please.]",
    "[Can you|Could you|Please] tell me [what {e} is|{e}][?|.]",
    "[I need|I want] {e}.",
    "Do you know what {e} is?",
    "What do you get for {e}?",
    "What does {e} make?",
)
_EXPRESSIONS = {
    "+": "[{a} + {b}|{a} + {b}|{a} plus {b}|{a} plus {b}|{a}+{b}|the sum of {a} and {b}]",
    "-": "[{a} - {b}|{a} - {b}|{a} minus {b}|{a} minus {b}|{a}-{b}|the difference of {a} and {b}]",
    "*": "[{a} * {b}|{a} times {b}|{a} x {b}|the product of {a} and {b}]",
}
_STORIES = {
    "+": ("Add {a} and {b}.", "What do {a} and {b} make together?",
          "I have {a} apples and get {b} more. How many [do I have|are there]?"),
    "-": ("Subtract {b} from {a}.", "I have {a} apples and [give away|eat] {b}. How many are left?"),
    "*": ("Multiply {a} by {b}.",),
}  # fmt: skip
# Never used for training.
_HELD_OUT = {
    "+": ("Tell me what {a} plus {b} is.", "Let me know {a} + {b}.", "Work out {a} + {b} for me."),
    "-": ("Tell me what {a} minus {b} is.", "Let me know {a} - {b}.", "Work out {a} - {b} for me."),
}


def arithmetic(random: Random) -> Sequence[Turn]:
    """One calculation."""
    operator = pick(random, "+", "+", "+", "+", "-", "-", "-", "-", "*")
    highest = 12 if operator == "*" else pick(random, 20, 50, 50, 50, 50, 50, 50, 99)
    a, b = random.randint(0, highest), random.randint(0, highest)
    if operator == "-" and random.random() < 0.8:
        a, b = max(a, b), min(a, b)
    return [
        Turn(
            _question(random, operator, a, b),
            f"{a} {operator} {b} = {result(a, operator, b)}.",
            _thought(a, operator, b),
        )
    ]


def _question(random: Random, operator: str, a: int, b: int) -> str:
    if random.random() < 0.15:
        question = fill(random, _STORIES[operator], {"a": a, "b": b})
    else:
        expression = fill(random, (_EXPRESSIONS[operator],), {"a": a, "b": b})
        question = fill(random, _ASK, {"e": expression})
    return loosen(random, question)


def result(a: int, operator: str, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b}[operator]


def _thought(a: int, operator: str, b: int) -> str:
    tens, ones = b // 10 * 10, b % 10
    if operator == "*" or not tens or not ones:
        return f"I need {a} {operator} {b}. That is {result(a, operator, b)}."
    middle = result(a, operator, tens)
    last = f"{middle} {operator} {ones} = {result(a, operator, b)}"
    return f"I take {b} as {tens} and {ones}. {a} {operator} {tens} = {middle}, {last}."


def probe(random: Random) -> Probe:
    """Two numbers up to 50."""
    operator = pick(random, "+", "-")
    a, b = random.randint(0, 50), random.randint(0, 50)
    if operator == "-":
        a, b = max(a, b), min(a, b)
    question = fill(random, _HELD_OUT[operator], {"a": a, "b": b})
    expected = str(result(a, operator, b))
    return Probe((user(question),), lambda text: re.findall(r"-?\d+", text)[-1:] == [expected])
