"""Questions with a fixed set of answers, as a model reads them: each answer has a label, and the reply is a label."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.protocol.decisions import (
    ChoiceAnswer,
    ChoiceProbability,
    ChoiceQuestion,
    DecisionQuestion,
    InputMessage,
    PredicateAnswer,
    PredicateQuestion,
    ScoreAnswer,
    ScoreProbability,
    SystemOneQuestion,
)
from quire.errors import InvalidRequest

MAX_QUESTIONS = 64
_YES_NO = ("yes", "no")


@dataclass(frozen=True)
class Question:
    """A question with one line for each answer."""

    instructions: str
    labels: Sequence[str]
    lines: Sequence[str]
    asks: str  # for a label

    @property
    def text(self) -> str:
        """What the model reads after what the question is about."""
        opening = [f"Question: {self.instructions}"] if self.instructions else []
        return "\n".join([*opening, *self.lines, self.asks])


@dataclass(frozen=True)
class Reading:
    """What a model thinks of a question's labels.

    Attributes:
        probabilities: of each label, among all of them.
        mass: of all labels together, among all tokens.
        is_likeliest: whether the most likely token of all is a label.
    """

    probabilities: Sequence[float]
    mass: float
    is_likeliest: bool

    @classmethod
    def of(cls, logprobs: Sequence[float], is_likeliest: bool) -> Reading:
        """From the labels' log-probabilities."""
        greatest = max(logprobs)
        weights = [math.exp(each - greatest) for each in logprobs]
        return cls([each / sum(weights) for each in weights], sum(map(math.exp, logprobs)), is_likeliest)

    @property
    def first(self) -> int:
        """Index of the most likely label."""
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @property
    def confidence(self) -> float:
        """Probability of the most likely label, among all tokens."""
        return self.probabilities[self.first] * self.mass

    @property
    def expected(self) -> float:
        """The expected index."""
        return sum(index * each for index, each in enumerate(self.probabilities))


def about(given: str | Sequence[InputMessage]) -> str:
    """The text that questions are about."""
    if isinstance(given, str):
        return given
    contents = (message.content for message in given)
    return "\n\n".join(each if isinstance(each, str) else "\n".join(part.text for part in each) for each in contents)


def question_of(number: int, question: DecisionQuestion) -> Question:
    """A question of `/v1/decisions`, whose answers have letters.

    Raises:
        InvalidRequest: it has too many choices, or one of them twice.
    """
    if isinstance(question, PredicateQuestion):
        options = [("false", ""), ("true", "")]
    elif isinstance(question, ChoiceQuestion):
        values = [(type(each.value), each.value) for each in question.choices]
        if len(set(values)) < len(values):
            raise InvalidRequest(f"questions[{number}].choices has a value twice.", parameter="questions")
        options = [(msgspec.json.encode(each.value).decode(), each.description) for each in question.choices]
    else:
        options = [(level.label, level.description) for level in question.levels]
    return _lettered(question.instructions, options, f"questions[{number}]")


def answer_of(question: DecisionQuestion, reading: Reading) -> PredicateAnswer | ChoiceAnswer | ScoreAnswer:
    """The answer to a question of `/v1/decisions`."""
    if isinstance(question, PredicateQuestion):
        return PredicateAnswer(question.name, reading.probabilities[1])
    if isinstance(question, ChoiceQuestion):
        choices = zip(question.choices, reading.probabilities, strict=True)
        return ChoiceAnswer(
            question.name, question.choices[reading.first].value,
            [ChoiceProbability(choice.value, probability) for choice, probability in choices], reading.confidence,
        )  # fmt: skip
    levels = enumerate(zip(question.levels, reading.probabilities, strict=True))
    return ScoreAnswer(
        question.name, reading.expected,
        [ScoreProbability(index, level.label, probability) for index, (level, probability) in levels],
        reading.confidence,
    )  # fmt: skip


def question_of_system_one(name: str, asked: SystemOneQuestion) -> Question:
    """A question of `/v1/systemone`.

    Raises:
        InvalidRequest: its criteria do not fit its type.
    """
    instructions = "" if asked.instructions is None else _text(asked.instructions)
    criteria = asked.criteria
    if asked.type == "noul":
        meanings = criteria if criteria is not None else {}
        if not isinstance(meanings, dict) or not meanings.keys() <= {"true", "false"}:
            raise _unfit(name, "an object with true and false, or null")
        given = [meanings.get("true"), meanings.get("false")]
        lines = [
            label if each is None else f"{label}: {_text(each)}" for label, each in zip(_YES_NO, given, strict=True)
        ]
        return Question(instructions, _YES_NO, lines, "Answer with yes or no only.")
    if asked.type == "choice":
        if not isinstance(criteria, dict) or not criteria:
            raise _unfit(name, "an object of options with a description or null")
        options = [(option, "" if each is None else _text(each)) for option, each in criteria.items()]
        return _lettered(instructions, options, f"questions.{name}")
    if not isinstance(criteria, list) or not 2 <= len(criteria) <= len(string.digits):
        raise _unfit(name, f"a list of 2 to {len(string.digits)} levels")
    labels = string.digits[: len(criteria)]
    lines = [f"{label}: {_text(level)}" for label, level in zip(labels, criteria, strict=True)]
    return Question(instructions, labels, lines, "Answer with the number of one level only.")


def answer_of_system_one(asked: SystemOneQuestion, reading: Reading) -> dict[str, Any]:
    """The answer to a question of `/v1/systemone`."""
    known, found = {"type": asked.type, "confidence": reading.confidence}, reading.probabilities
    if asked.type == "noul":
        return known | {"noul": found[0], "probabilities": dict(zip(_YES_NO, found, strict=True))}
    if asked.type == "choice":
        options = [*asked.criteria]
        return known | {"choice": options[reading.first], "probabilities": dict(zip(options, found, strict=True))}
    return known | {
        "score": reading.expected,
        "legend": {str(index): _text(level) for index, level in enumerate(asked.criteria)},
        "probabilities": {str(index): each for index, each in enumerate(found)},
    }


def _lettered(instructions: str, options: Sequence[tuple[str, str]], name: str) -> Question:
    if len(options) > len(string.ascii_uppercase):
        raise InvalidRequest(
            f"{name} has {len(options)} options; a question may have {len(string.ascii_uppercase)}, one for each "
            "letter of the alphabet.",
            parameter="questions",
        )
    labels = string.ascii_uppercase[: len(options)]
    lines = [
        f"{label}: {option} - {description}" if description else f"{label}: {option}"
        for label, (option, description) in zip(labels, options, strict=True)
    ]
    return Question(instructions, labels, lines, "Answer with the letter of one option only.")


def _unfit(name: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"questions.{name}.criteria must be {expected}.", parameter="questions")


def _text(given: Any) -> str:
    return given if isinstance(given, str) else msgspec.json.encode(given).decode()
