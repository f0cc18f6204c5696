"""What the endpoints of pooling models share: a body's inputs as tokens, and what comes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request

from gateway.answers.connection import while_connected
from gateway.answers.pooled import Pooled
from gateway.context import GatewayContext, context_of
from gateway.endpoints.large import beside
from gateway.protocol.common import Usage
from gateway.protocol.pooling import InputFields, PoolingFields
from gateway.requests.caller import check_rank, tenant_of
from gateway.requests.messages import template_messages
from gateway.requests.pooling_request import PoolingRequest, TokenizedInput, Truncation
from gateway.requests.refused import check_refused
from gateway.requests.served_model import PoolingModel, ServedModel
from gateway.requests.template_variables import template_variables
from gateway.requests.validate import check_cache_salt, check_request_id, check_truncation
from quire.bounds import PRIORITY_BOUND, check_token_ids
from quire.errors import Cancelled, ContextTooLong, InvalidRequest
from quire.rpc.context import current_request_id
from quire.runners import POOLING

NEEDED_TASKS = {
    "embed": "embeddings", "classify": "classes", "token_embed": "embeddings of tokens",
    "token_classify": "classes of tokens",
}  # fmt: skip


@dataclass(frozen=True)
class PoolingCall:
    """One request on its way: who asks, and which model."""

    request: Request
    body: PoolingFields
    model: ServedModel
    request_id: str  # the caller's, or the one that the gateway has made up

    @classmethod
    def of(cls, request: Request, body: PoolingFields) -> PoolingCall:
        """
        Raises:
            InvalidRequest: the model is served for something else, or a field that all have is wrong.
        """
        model = context_of(request).fleet.model(body.model, POOLING)
        check_refused(body)
        check_rank(request)
        if body.padding not in (None, "do_not_pad"):
            raise InvalidRequest("padding: sequences are never padded here; leave it out.", parameter="padding")
        PRIORITY_BOUND.check("priority", body.priority)
        check_request_id(body.request_id)
        check_cache_salt(body.cache_salt)
        return cls(request, body, model, body.request_id or current_request_id())

    @property
    def context(self) -> GatewayContext:
        """The gateway's parts."""
        return context_of(self.request)

    @property
    def info(self) -> PoolingModel:
        """What the model can do."""
        assert self.model.pooling is not None
        return self.model.pooling

    @property
    def model_name(self) -> str:
        """As the answer tells it: an alias as it was asked for, a name of the model by the first of them."""
        names = self.model.served_model_names
        return names[0] if not self.body.model or self.body.model in names else self.body.model

    @property
    def truncation(self) -> Truncation | None:
        """
        Raises:
            InvalidRequest: `truncate_prompt_tokens` is neither -1 nor positive.
        """
        limit, side = self.body.truncate_prompt_tokens, self.body.truncation_side
        if limit is None:
            return None
        check_truncation(limit)
        most = self.model.max_model_len
        return Truncation(most if limit == -1 else min(limit, most), None if side is None else side == "left")

    def require(self, task: str) -> None:
        """
        Raises:
            InvalidRequest: the model does not do it; names what it does.
        """
        if task not in self.info.tasks:
            raise InvalidRequest(
                f"The model {self.model.main_name!r} makes no {NEEDED_TASKS[task]}. What it does: "
                f"{', '.join(self.info.tasks)} (see /pooling).",
                parameter="model",
            )

    def check_inputs(self, count: int, parameter: str) -> None:
        """
        Raises:
            InvalidRequest: there is nothing to do, or too much.
        """
        most = self.context.options.max_choices_per_request
        if not 1 <= count <= most:
            raise InvalidRequest(
                f"{parameter} has {count} entries; a request needs 1 to {most} (--max-choices-per-request).",
                parameter=parameter,
            )

    async def texts(
        self, texts: Sequence[str], *, special: bool = True, truncation: Truncation | None = None
    ) -> list[TokenizedInput]:
        """Texts as tokens, cut as the body says, or as it is told here."""
        self.context.require_tokenizer("An input as text", "input")
        return await self.context.tokenizer.encode_inputs(
            texts, special, self.model.max_model_len, truncation or self.truncation
        )

    async def run(self, inputs: Sequence[TokenizedInput], task: str, **parameters: Any) -> list[Pooled]:
        """What the model makes of them; ends when the client goes away.

        Raises:
            InvalidRequest: an input is empty, or they are too many tokens together.
            Cancelled: the client has gone.
        """
        options = self.context.options
        wanted = PoolingRequest(
            self.request_id, self.model, self.body.model or self.model.main_name, inputs, task,
            options.request_timeout_seconds, use_activation=self.body.use_activation, priority=self.body.priority,
            tenant=tenant_of(self.request),
        )  # fmt: skip
        wanted = replace(wanted, **parameters)
        _check_size(wanted, options.max_tokens_per_request)
        job: asyncio.Future[list[Pooled]] = asyncio.ensure_future(self.context.pipeline.pooling.pool(wanted))
        gone = False

        def leave() -> None:
            nonlocal gone
            gone = True
            job.cancel()

        try:
            async with while_connected(self.request.receive, leave):
                return await job
        except asyncio.CancelledError:
            if gone:
                raise Cancelled("The client has gone.") from None
            raise
        finally:
            job.cancel()


def _check_size(wanted: PoolingRequest, limit: int) -> None:
    if not all(each.token_ids for each in wanted.inputs):
        raise InvalidRequest("An input is empty; it needs at least one token.", parameter="input")
    if wanted.num_tokens > limit:
        raise InvalidRequest(
            f"The inputs have {wanted.num_tokens} tokens together; at most {limit} are allowed "
            "(--max-tokens-per-request): send fewer.",
            parameter="input",
        )


def usage_of(outputs: Sequence[Pooled]) -> Usage:
    """Tokens of all inputs."""
    num_tokens = sum(output.num_tokens for output in outputs)
    return Usage(num_tokens, num_tokens, 0)


def now() -> int:
    """Unix time, as answers have it."""
    return int(time.time())


async def inputs_of(call: PoolingCall, body: InputFields, prompt: str = "") -> list[TokenizedInput]:
    """A body's inputs as tokens.

    Args:
        prompt: that stands before each text.

    Raises:
        InvalidRequest: there are none, or several kinds.
        ContextTooLong: one does not fit the model, and is not to be cut.
    """
    if (body.input is None) == (body.messages is None):
        raise InvalidRequest("Send either input or messages.", parameter="input")
    if body.messages is not None:
        return await _conversations(call, body, body.messages)
    given = body.input
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]  # type: ignore[list-item]  # one input, as text or as ids, which are checked below
    entries = list(given or ())
    call.check_inputs(len(entries), "input")
    texts = [entry for entry in entries if isinstance(entry, str)]
    if texts:
        if len(texts) != len(entries):
            raise InvalidRequest("input mixes texts and token ids; send one kind.", parameter="input")
        return await call.texts([prompt + text for text in texts], special=body.add_special_tokens is not False)
    return await beside(call.request, _checked, entries, call)


def _checked(lists: Sequence[Any], call: PoolingCall) -> list[TokenizedInput]:
    """Inputs that came as token ids.

    Raises:
        InvalidRequest: one is no list of token ids.
        ContextTooLong: one does not fit the model.
    """
    truncation, most, found = call.truncation, call.model.max_model_len, []
    for token_ids in lists:
        if not isinstance(token_ids, list) or not set(map(type, token_ids)) <= {int}:
            raise InvalidRequest("input mixes token ids and lists of them; send one kind.", parameter="input")
        kept = token_ids
        if truncation and len(token_ids) > truncation.num_tokens:
            count = truncation.num_tokens
            kept = token_ids[len(token_ids) - count :] if truncation.keeps_end else token_ids[:count]
        if len(kept) > most:
            raise ContextTooLong(
                f"This model's maximum context length is {most} tokens. However, an input has {len(kept)}: shorten it, "
                "or send truncate_prompt_tokens: -1.",
                parameter="input",
            )
        check_token_ids("input", kept, call.model.vocab_size)
        found.append(TokenizedInput(tuple(kept)))
    return found


async def _conversations(call: PoolingCall, body: InputFields, messages: Sequence[Any]) -> list[TokenizedInput]:
    """One conversation, or several."""
    call.context.require_tokenizer("A conversation", "messages")
    conversations = messages if messages and isinstance(messages[0], list) else [messages]
    if not all(isinstance(each, list) and all(isinstance(one, dict) for one in each) for each in conversations):
        raise InvalidRequest("messages mixes messages and conversations; send one kind.", parameter="messages")
    call.check_inputs(len(conversations), "messages")
    found = []
    for conversation in conversations:
        rendered = await call.context.tokenizer.render_chat(
            await beside(call.request, template_messages, conversation),
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            add_special_tokens=bool(body.add_special_tokens),
            template=body.chat_template,
            kwargs=template_variables(body.chat_template_kwargs, None, ""),
            max_tokens=call.model.max_model_len,
            truncation=call.truncation,
        )
        found.append(TokenizedInput(rendered.prompt.token_ids))
    return found
