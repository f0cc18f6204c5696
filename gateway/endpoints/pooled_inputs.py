"""Inputs of pooling models: texts, token ids and conversations, which may have images, videos and audio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.endpoints.large import beside
from gateway.endpoints.pooled import PoolingCall
from gateway.media.settings import check_media_settings, check_no_media_settings
from gateway.protocol.pooling import InputFields
from gateway.requests.field_names import told_as
from gateway.requests.messages import template_messages
from gateway.requests.pooling_request import TokenizedInput
from gateway.requests.template_variables import template_variables
from gateway.services.tokenizer import ConversationForm
from quire.bounds import check_token_ids
from quire.errors import ContextTooLong, InvalidRequest

# Of the images, videos and audio of a request's inputs together, as encoders take them.
_MOST_CONTENT_BYTES = 2**28

Conversation = Sequence[Mapping[str, Any]]


async def inputs_of(call: PoolingCall, body: InputFields, prompt: str = "") -> list[TokenizedInput]:
    """Tokenizes the inputs of a body.

    Args:
        prompt: text to prepend to each text input.

    Raises:
        InvalidRequest: there are no inputs, or several kinds.
        ContextTooLong: an input does not fit the model, and there is no truncation.
    """
    if (body.input is None) == (body.messages is None):
        raise InvalidRequest("Send either input or messages.", parameter="input")
    if body.messages is not None:
        return await _conversations(call, body, body.messages)
    check_no_media_settings(body)
    given = body.input
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]  # type: ignore[list-item]  # one input, as text or as ids, which are checked below
    entries = list(given or ())
    call.check_inputs(len(entries), "input")
    texts = [entry for entry in entries if isinstance(entry, str)]
    if texts:
        if len(texts) != len(entries):
            raise InvalidRequest("input mixes texts and token ids; send one kind.", parameter="input")
        with told_as({"prompt": "input"}):
            return await call.texts([prompt + text for text in texts], special=body.add_special_tokens is not False)
    return await beside(call.request, _checked, entries, call)


def _checked(lists: Sequence[Any], call: PoolingCall) -> list[TokenizedInput]:
    """Checks and truncates inputs given as token ids.

    Raises:
        InvalidRequest: one is not a list of token ids.
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
    """Renders one conversation, or several, by the chat template."""
    call.context.require_tokenizer("A conversation", "messages")
    conversations = messages if messages and isinstance(messages[0], list) else [messages]
    if not all(isinstance(each, list) and all(isinstance(one, dict) for one in each) for each in conversations):
        raise InvalidRequest("messages mixes messages and conversations; send one kind.", parameter="messages")
    call.check_inputs(len(conversations), "messages")
    return await rendered(
        call, conversations, ConversationForm.CHAT,
        add_generation_prompt=body.add_generation_prompt, continue_final_message=body.continue_final_message,
        add_special_tokens=bool(body.add_special_tokens),
    )  # fmt: skip


async def rendered(
    call: PoolingCall,
    conversations: Sequence[Conversation],
    form: ConversationForm,
    *,
    variables: Mapping[str, Any] = {},
    add_generation_prompt: bool = False,
    continue_final_message: bool = False,
    add_special_tokens: bool = False,
) -> list[TokenizedInput]:
    """Renders conversations, and has their images, videos and audio read and prepared.

    Args:
        variables: further ones of the template.

    Raises:
        InvalidRequest: one cannot be rendered, the model does not read what it has besides text, or all that together
            is too large.
        ContextTooLong: one does not fit the model, and there is no truncation.
    """
    body, context = call.body, call.context
    check_media_settings(body, are_trusted=context.options.media.trust_request_mm_kwargs)
    found: list[TokenizedInput] = []
    size = 0
    for conversation in conversations:
        converted = await beside(call.request, template_messages, conversation)
        chat = await context.tokenizer.render_chat(
            converted.json,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            add_special_tokens=add_special_tokens,
            template=body.chat_template,
            kwargs={**template_variables(body.chat_template_kwargs, None, None), **variables},
            max_tokens=call.model.max_model_len,
            truncation=call.truncation,
            media=await context.media.read(converted.media, call.model.media),
            processor_settings=body.mm_processor_kwargs,
            reading_settings=body.media_io_kwargs,
            form=form,
        )
        found.append(TokenizedInput(chat.prompt.token_ids, images=tuple(chat.prompt.images)))
        size += found[-1].content_bytes
        if size > _MOST_CONTENT_BYTES:
            raise InvalidRequest(
                f"The images, videos and audio of all inputs take more than {_MOST_CONTENT_BYTES} bytes for the model: "
                "send fewer at a time, or smaller ones.",
                parameter="messages",
            )
    return found
