"""Sums, differences and small products of two numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from demo_model.corpus.example import Probe, Turn, fill, loosen, pick, user

_PLUS = (
    "What is {a} + {b}?", "What is {a} plus {b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} = ?", "Add {a} and {b}.",
    "How much is {a} + {b}?", "Calculate {a} + {b}.", "Can you add {a} and {b}?", "What do {a} and {b} make together?",
    "I have {a} apples and get {b} more. How many do I have?", "Please compute {a} plus {b}.",
    "the sum of {a} and {b}?",
)  # fmt: skip
_MINUS = (
    "What is {a} - {b}?", "What is {a} minus {b}?", "{a} - {b}", "{a}-{b}", "{a} - {b} = ?", "Subtract {b} from {a}.",
    "How much is {a} - {b}?", "Calculate {a} - {b}.", "I have {a} apples and give away {b}. How many are left?",
    "Please compute {a} minus {b}.", "the difference of {a} and {b}?",
)  # fmt: skip
_TIMES = (
    "What is {a} * {b}?", "What is {a} times {b}?", "{a} * {b}", "{a} x {b}", "Multiply {a} by {b}.",
    "How much is {a} times {b}?", "Calculate {a} * {b}.", "Please compute {a} times {b}.",
)  # fmt: skip
# Never used for training.
_HELD_OUT = {
    "+": ("Tell me what {a} plus {b} is.", "Quick question: {a} + {b}?", "Work out {a} + {b} for me."),
    "-": ("Tell me what {a} minus {b} is.", "Quick question: {a} - {b}?", "Work out {a} - {b} for me."),
}


def arithmetic(random: Random) -> Sequence[Turn]:
    """One calculation."""
    operator = pick(random, "+", "+", "+", "-", "-", "-", "*")
    highest = 12 if operator == "*" else pick(random, 20, 50, 50, 50, 100)
    a, b = random.randint(0, highest), random.randint(0, highest)
    if operator == "-" and random.random() < 0.8:
        a, b = max(a, b), min(a, b)
    templates = {"+": _PLUS, "-": _MINUS, "*": _TIMES}[operator]
    question = loosen(random, fill(random, templates, {"a": a, "b": b}))
    return [Turn(question, f"{a} {operator} {b} = {result(a, operator, b)}.", _thought(a, operator, b))]


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
