"""Questions with a fixed set of answers; the fake engine gives the labels the log-probabilities -1, -2, … in order."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gateway.protocol.decisions import SystemOneQuestion
from gateway.requests.decisions import Reading, answer_of_system_one, question_of_system_one
from tests.support.gateway_stack import GatewayStack

DECISIONS, SYSTEM_ONE = "/v1/decisions", "/v1/systemone"
WHETHER = {"type": "predicate", "instructions": "Is it damaged?", "name": "damage"}
WHICH = {
    "type": "choice", "instructions": "Which team?",
    "choices": [{"value": "billing", "description": "money"}, {"value": True}],
}  # fmt: skip
HOW = {"type": "score", "instructions": "How urgent?", "levels": [{"label": "low"}, {"label": "high"}]}
NOUL = {"type": "noul", "instructions": "Is it late?", "criteria": {"true": "after noon"}}


def softmax(*logprobs: float) -> list[Any]:
    total = sum(map(math.exp, logprobs))
    return [pytest.approx(math.exp(each) / total, abs=1e-6) for each in logprobs]


async def post(gateway: GatewayStack, path: str, body: Any) -> Any:
    response = await gateway.post(path, {"model": "fake"} | body)
    assert response.status_code == 200, response.text
    return response.json()


async def refusal(gateway: GatewayStack, path: str, body: Any) -> str:
    response = await gateway.post(path, {"model": "fake"} | body)
    assert response.status_code == 400, response.text
    return str(response.json()["error"]["message"])


async def prompts(gateway: GatewayStack, count: int) -> list[str]:
    """The texts of the last prompts that the engine received."""
    started = sorted(gateway.engine.record.started[-count:], key=lambda each: each.request_id)
    return [await gateway.context.tokenizer.decode(each.prompt_token_ids) for each in started]


@pytest.mark.asyncio(loop_scope="module")
async def test_openais_questions(gateway: GatewayStack) -> None:
    message = {"role": "user", "content": [{"type": "input_text", "text": "The package"}]}
    body = {"input": [message, {"role": "user", "content": "is broken."}], "questions": [WHETHER, WHICH, HOW]}
    answer = await post(gateway, DECISIONS, body)
    first, second = softmax(-1, -2)
    confidence = pytest.approx(math.exp(-1), abs=1e-6)
    assert answer["answers"] == [
        {"type": "predicate", "name": "damage", "probability": second},
        {
            "type": "choice", "name": None, "choice": "billing", "confidence": confidence,
            "probabilities": [{"value": "billing", "probability": first}, {"value": True, "probability": second}],
        },
        {
            "type": "score", "name": None, "score": second, "confidence": confidence,
            "probabilities": [
                {"value": 0, "label": "low", "probability": first},
                {"value": 1, "label": "high", "probability": second},
            ],
        },
    ]  # fmt: skip
    assert (answer["model"], answer["usage"]["output_tokens"]) == ("fake", 3)
    told = "".join(await prompts(gateway, 3))
    for text in (
        "The package\n\nis broken.\n\nQuestion: Is it damaged?\nA: false\nB: true\nAnswer with the letter of one",
        'Question: Which team?\nA: "billing" - money\nB: true\n', "Question: How urgent?\nA: low\nB: high\n",
    ):  # fmt: skip
        assert text in told
    sampling = gateway.engine.record.started[-1].sampling
    assert list(sampling.logprob_token_ids) == [32, 33]  # A and B
    assert (sampling.max_tokens, sampling.temperature, sampling.processed_logprobs) == (1, 0.0, True)


@pytest.mark.asyncio(loop_scope="module")
async def test_vllms_questions(gateway: GatewayStack) -> None:
    questions = {
        "team": {"type": "choice", "criteria": {"billing": "money", "other": None}},
        "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["low", "high", "now"]},
    }
    body = {"state": {"subject": "Refund"}, "questions": questions, "instructions": "Be strict."}
    answer = await post(gateway, SYSTEM_ONE, body)
    first, second = softmax(-1, -2)
    assert answer["answers"]["team"] == {
        "type": "choice", "choice": "billing", "confidence": pytest.approx(math.exp(-1), abs=1e-6),
        "probabilities": {"billing": first, "other": second},
    }  # fmt: skip
    assert answer["answers"]["urgency"]["legend"] == {"0": "low", "1": "high", "2": "now"}
    low, high, urgent = softmax(-3, -4, -5)
    assert answer["answers"]["urgency"]["probabilities"] == {"0": low, "1": high, "2": urgent}
    mass = math.exp(-1) + math.exp(-2)
    assert answer["diagnostics"]["team"] == {"label_mass": pytest.approx(mass, abs=1e-6), "argmax_is_label": False}
    assert (answer["object"], answer["usage"]["output_tokens"]) == ("structured_decision", 2)
    told = "".join(await prompts(gateway, 2))
    for text in (
        "Be strict.", '{"subject":"Refund"}\n\nA: billing - money\nB: other\nAnswer with the letter',
        "0: low\n1: high\n2: now\nAnswer with the number of one level only.",
    ):  # fmt: skip
        assert text in told


def test_yes_or_no() -> None:
    asked = SystemOneQuestion("noul", "Is it late?", {"true": "after noon"})
    question = question_of_system_one("late", asked)
    assert question.text == "Question: Is it late?\nyes: after noon\nno\nAnswer with yes or no only."
    answer = answer_of_system_one(asked, Reading.of([math.log(0.3), math.log(0.1)], True))
    assert (answer["noul"], answer["confidence"]) == (pytest.approx(0.75), pytest.approx(0.3))
    assert answer["probabilities"] == {"yes": pytest.approx(0.75), "no": pytest.approx(0.25)}


@pytest.mark.asyncio(loop_scope="module")
async def test_what_cannot_be_asked_is_refused(gateway: GatewayStack) -> None:
    twice = WHICH | {"choices": [{"value": "a"}, {"value": "a"}]}
    assert "questions[0].choices has a value twice" in await refusal(
        gateway, DECISIONS, {"input": "x", "questions": [twice]}
    )
    many = WHICH | {"choices": [{"value": str(number)} for number in range(27)]}
    assert "has 27 options" in await refusal(gateway, DECISIONS, {"input": "x", "questions": [many]})
    assert "65 entries" in await refusal(gateway, DECISIONS, {"input": "x", "questions": [WHETHER] * 65})
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
    assert "input_image" in await refusal(gateway, DECISIONS, {"input": image, "questions": [WHETHER]})
    assert "0 entries" in await refusal(gateway, SYSTEM_ONE, {"state": "x", "questions": {}})
    criteria = {"state": "x", "questions": {"q": NOUL | {"criteria": {"maybe": "x"}}}}
    assert "questions.q.criteria must be an object with true and false" in await refusal(gateway, SYSTEM_ONE, criteria)
    words = {"state": "x", "questions": {"q": NOUL}}  # every byte is a token for this model
    assert "labels yes, no are not a token of their own" in await refusal(gateway, SYSTEM_ONE, words)
    thinking = {"state": "x", "questions": {"q": NOUL}, "chat_template_kwargs": {"enable_thinking": True}}
    assert "turns thinking on" in await refusal(gateway, SYSTEM_ONE, thinking)
