"""`POST /v1/decisions` and `/v1/systemone`: how likely each of a fixed set of answers is, by one token per question.

Each question is a conversation whose reply begins with the label of an answer. Nothing else is generated; the labels'
log-probabilities are the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.collecting import CollectedChoice, collect
from gateway.context import GatewayContext, context_of
from gateway.endpoints import chat, large
from gateway.endpoints.body import read_json
from gateway.endpoints.pooled import now
from gateway.protocol.chat import ChatFields
from gateway.protocol.decisions import (
    DecisionInputDetails,
    DecisionOutputDetails,
    DecisionRequest,
    DecisionResponse,
    DecisionUsage,
    Diagnostics,
    SystemOneRequest,
    SystemOneResponse,
    SystemOneUsage,
)
from gateway.requests.decisions import (
    MAX_QUESTIONS,
    Question,
    Reading,
    about,
    answer_of,
    answer_of_system_one,
    question_of,
    question_of_system_one,
)
from gateway.requests.state import RequestState
from gateway.requests.template_variables import switch_of, template_variables, thinking_switched
from quire.errors import FailedPrecondition, InvalidRequest

_ANY_CHAT = b'[{"role": "user", "content": "x"}]'


async def decisions(request: Request) -> Response:
    """Answers OpenAI's questions."""
    body = await read_json(request, DecisionRequest)
    questions = [question_of(number, question) for number, question in enumerate(body.questions)]
    asked = ChatFields(model=body.model, user=body.safety_identifier)
    state, readings = await _read(request, asked, questions, about(body.input))
    count, details = len(readings), DecisionInputDetails(state.cached_tokens)
    usage = DecisionUsage(
        state.prompt_tokens, details, count, DecisionOutputDetails(), state.prompt_tokens + count
    )  # fmt: skip
    answers = [answer_of(question, reading) for question, reading in zip(body.questions, readings, strict=True)]
    return await large.answer(
        request, count, lambda: DecisionResponse(state.request.answering_model, answers, usage)
    )  # fmt: skip


async def system_one(request: Request) -> Response:
    """Answers vLLM's questions."""
    body = await read_json(request, SystemOneRequest)
    questions = [question_of_system_one(name, asked) for name, asked in body.questions.items()]
    if switch_of(body.chat_template_kwargs or {}):
        raise InvalidRequest(
            "chat_template_kwargs turns thinking on, but the reply must begin with its label; leave that out.",
            parameter="chat_template_kwargs",
        )
    asked = ChatFields(
        model=body.model, chat_template_kwargs=body.chat_template_kwargs, cache_salt=body.cache_salt,
        priority=body.priority, request_id=body.request_id,
    )  # fmt: skip
    subject = body.state if isinstance(body.state, str) else msgspec.json.encode(body.state).decode()
    state, readings = await _read(request, asked, questions, subject, body.instructions)
    named = list(zip(body.questions.items(), readings, strict=True))
    return await large.answer(
        request, len(readings),
        lambda: SystemOneResponse(
            f"decision-{state.request.request_id}", now(), state.request.answering_model,
            {name: answer_of_system_one(question, reading) for (name, question), reading in named},
            SystemOneUsage(state.prompt_tokens, len(readings)),
            {name: Diagnostics(reading.mass, reading.is_likeliest) for (name, _), reading in named},
        ),
    )  # fmt: skip


async def _read(
    request: Request, asked: ChatFields, questions: Sequence[Question], subject: str, instructions: str | None = None
) -> tuple[RequestState, list[Reading]]:
    """Reads the labels' probabilities from the first token of a reply to each question.

    Raises:
        InvalidRequest: there are no questions, or too many; or the labels are not single tokens for this model.
    """
    if not 1 <= len(questions) <= MAX_QUESTIONS:
        raise InvalidRequest(
            f"questions has {len(questions)} entries; it must have 1 to {MAX_QUESTIONS}.", parameter="questions"
        )
    context, labels = context_of(request), list(dict.fromkeys(each for some in questions for each in some.labels))
    context.require_tokenizer("A question", "questions")
    variables = thinking_switched(False) | (asked.chat_template_kwargs or {})
    ids = dict(zip(labels, await _label_ids(context, labels, variables), strict=True))
    # Greedy, so that the token is the most likely one; its probability does not depend on the server's settings.
    body = msgspec.structs.replace(
        asked, chat_template_kwargs=variables, max_tokens=1, temperature=0.0, repetition_penalty=1.0, min_tokens=0,
        presence_penalty=0.0, frequency_penalty=0.0, ignore_eos=True, logprobs=True,
        logprob_token_ids=list(ids.values()),
    )  # fmt: skip
    system = [{"role": "system", "content": instructions}] if instructions else []
    conversations: list[chat.Conversation] = [
        [*system, {"role": "user", "content": f"{subject}\n\n{question.text}"}] for question in questions
    ]
    generation = await chat.prepare(request, body, conversations)
    sampling = msgspec.structs.replace(generation.sampling, processed_logprobs=True)
    state = await context.pipeline.start(replace(generation, sampling=sampling, wants_text=False))
    choices = await collect(state, len(questions), request.receive)
    found = [_reading(question, ids, choice) for question, choice in zip(questions, choices, strict=True)]
    return state, found


def _reading(question: Question, ids: Mapping[str, int], choice: CollectedChoice) -> Reading:
    score, own = choice.scores[0], [ids[label] for label in question.labels]
    logprobs = dict(zip(score.token_ids[1:], score.logprobs[1:], strict=True))
    return Reading.of([logprobs[token_id] for token_id in own], score.token_ids[0] in own)


async def _label_ids(context: GatewayContext, labels: Sequence[str], variables: Mapping[str, Any]) -> list[int]:
    """The token with which a reply that is a label begins.

    Raises:
        InvalidRequest: a label is not one token of its own at the beginning of a reply.
    """
    options = context.options
    defaults = template_variables(
        variables, None, options.reasoning.reasoning_effort, None, options.default_chat_template_kwargs
    )
    try:
        rendered = await context.tokenizer.render_chat(
            _ANY_CHAT, add_generation_prompt=True, continue_final_message=False, add_special_tokens=False,
            template=None, kwargs=defaults, default_effort=options.reasoning.default_effort, with_text=True,
        )  # fmt: skip
    except FailedPrecondition as error:
        raise InvalidRequest(f"Questions need a chat template: {error.message}", parameter="model") from error
    texts = [rendered.text, *(rendered.text + label for label in labels)]
    before, *after = [list(each.token_ids) for each in await context.tokenizer.encode(texts, False)]
    found = [each[-1] for each in after]
    if any(each[:-1] != before for each in after) or len(set(found)) < len(found):
        raise InvalidRequest(
            f"Some of the labels {', '.join(labels)} are not a token of their own at the beginning of this model's "
            "replies, so that their probabilities cannot be read.",
            parameter="model",
        )
    return found
