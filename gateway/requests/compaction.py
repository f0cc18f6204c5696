"""Turns a conversation to compact into a chat in which the model summarizes it."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.compaction import CompactRequest
from gateway.requests.response_items import Item, joined, messages_of
from gateway.requests.template_variables import thinking_switched

_MOST_TOKENS = 2048  # of a summary, and at most an eighth of the context
_ASKED = (
    "Summarize our conversation up to here. You will go on with my messages and this summary alone, so keep all that "
    "is needed for that: what was asked for and decided; facts, names, numbers and paths exactly as they are; what "
    "tools have returned; and what is still to be done. Answer with the summary only."
)


def summary_request(
    body: CompactRequest, earlier: Sequence[Item], given: Sequence[Item], max_model_len: int
) -> ChatCompletionRequest:
    """Returns the chat to answer with the summary. Of a conversation that leaves no room for it, the oldest tokens are
    dropped.

    Args:
        earlier: items of the conversation before the request's input.
        given: items of the request's input.
        max_model_len: of the model.

    Raises:
        InvalidRequest: an item is malformed, or of an unsupported type.
    """
    messages = messages_of(body.instructions, [*earlier, *given], len(earlier))
    if messages and messages[-1]["role"] == "user":
        messages[-1]["content"] = joined(messages[-1]["content"], _ASKED)
    else:
        messages.append({"role": "user", "content": _ASKED})
    room = max(1, min(_MOST_TOKENS, max_model_len // 8))
    return ChatCompletionRequest(
        model=body.model, messages=messages, temperature=0, max_completion_tokens=room,
        truncate_prompt_tokens=max(1, max_model_len - room), chat_template_kwargs=thinking_switched(False),
        prompt_cache_key=body.prompt_cache_key,
    )  # fmt: skip
