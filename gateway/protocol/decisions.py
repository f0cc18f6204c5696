"""`/v1/decisions`, as OpenAI defines it, and `/v1/systemone`, as vLLM does: questions with a fixed set of answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from gateway.protocol.fields import RequestFields, Whole

Name = str | None
ChoiceValue = str | bool


class InputText(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message."""

    type: Literal["input_text"]
    text: str


class InputMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message that the questions are about."""

    role: Literal["user"]
    content: str | list[InputText]
    type: Literal["message"] = "message"


class PredicateQuestion(msgspec.Struct, tag="predicate", forbid_unknown_fields=True):
    """Whether something is so."""

    instructions: str
    name: Name = None


class ChoiceOption(msgspec.Struct, forbid_unknown_fields=True):
    """One of a question's answers."""

    value: ChoiceValue
    description: str = ""


class ChoiceQuestion(msgspec.Struct, tag="choice", forbid_unknown_fields=True):
    """Which of several answers is right."""

    instructions: str
    choices: Annotated[list[ChoiceOption], msgspec.Meta(min_length=2)]
    name: Name = None


class ScoreLevel(msgspec.Struct, forbid_unknown_fields=True):
    """One level of a scale."""

    label: str
    description: str = ""


class ScoreQuestion(msgspec.Struct, tag="score", forbid_unknown_fields=True):
    """Where on a scale something is."""

    instructions: str
    levels: Annotated[list[ScoreLevel], msgspec.Meta(min_length=2, max_length=10)]
    name: Name = None


DecisionQuestion = PredicateQuestion | ChoiceQuestion | ScoreQuestion


class DecisionRequest(RequestFields, kw_only=True):
    """Questions about a text."""

    model: str
    input: str | list[InputMessage]
    questions: list[DecisionQuestion]  # as many as MAX_QUESTIONS
    safety_identifier: Annotated[str, msgspec.Meta(max_length=128)] | None = None


class PredicateAnswer(msgspec.Struct, tag="predicate"):
    """How likely it is so."""

    name: Name
    probability: float


class ChoiceProbability(msgspec.Struct):
    """How likely an answer is, among all of them."""

    value: ChoiceValue
    probability: float


class ChoiceAnswer(msgspec.Struct, tag="choice"):
    """The most likely answer."""

    name: Name
    choice: ChoiceValue
    probabilities: list[ChoiceProbability]
    confidence: float


class ScoreProbability(msgspec.Struct):
    """How likely a level is, among all of them."""

    value: int
    label: str
    probability: float


class ScoreAnswer(msgspec.Struct, tag="score"):
    """The expected level, counted from 0."""

    name: Name
    score: float
    probabilities: list[ScoreProbability]
    confidence: float


class DecisionInputDetails(msgspec.Struct):
    """Breakdown of the input tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0


class DecisionOutputDetails(msgspec.Struct):
    """Breakdown of the output tokens."""

    reasoning_tokens: int = 0


class DecisionUsage(msgspec.Struct):
    """Token counts of all questions."""

    input_tokens: int
    input_tokens_details: DecisionInputDetails
    output_tokens: int
    output_tokens_details: DecisionOutputDetails
    total_tokens: int


class DecisionResponse(msgspec.Struct):
    """The answers, in the questions' order."""

    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    usage: DecisionUsage


class SystemOneQuestion(msgspec.Struct, forbid_unknown_fields=True):
    """A question: noul (yes or no), choice (criteria: option → description) or score (criteria: a list of levels)."""

    type: Literal["noul", "choice", "score"]
    instructions: Any = ""
    criteria: Any = None


class SystemOneRequest(RequestFields, kw_only=True):
    """Questions about a state, which is text or any JSON."""

    state: Any
    questions: dict[str, SystemOneQuestion]
    model: str | None = None
    instructions: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: Whole = 0
    request_id: str | None = None


class SystemOneUsage(msgspec.Struct):
    """Token counts of all questions."""

    input_tokens: int
    output_tokens: int


class Diagnostics(msgspec.Struct):
    """How far the model wanted to answer with one of a question's labels."""

    label_mass: float
    argmax_is_label: bool


class SystemOneResponse(msgspec.Struct):
    """The answers by the questions' ids."""

    id: str
    created: int
    model: str
    answers: dict[str, dict[str, Any]]
    usage: SystemOneUsage
    diagnostics: dict[str, Diagnostics]
    object: str = "structured_decision"
