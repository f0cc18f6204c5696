"""Converts requests of Anthropic's API to OpenAI chat requests, which the rest of the gateway works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.constraints import JsonSchemaFormat, ResponseFormat
from gateway.protocol.messages import CountTokensRequest, MessagesRequest, MessagesTool
from gateway.protocol.tokens import TokenizeRequest
from gateway.requests.anthropic_blocks import conversation
from gateway.requests.shared_fields import check_shared, shared_fields
from gateway.requests.template_variables import thinking_switched
from quire.compatibility.refused_fields import Refused
from quire.errors import InvalidRequest

_NAMED_FORM = '{"type": "tool", "name": "…"}'
# Chat field → its name in this API, for error messages.
FIELDS = {
    "stop": "stop_sequences", "user": "metadata.user_id", "thinking_token_budget": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort", "response_format.json_schema.schema": "output_config.format.schema",
}  # fmt: skip
_OFFERED = (None, "custom")  # types of tools
_NO_TOOLS_HERE = "Quire does not run tools itself"
_NO_LOGPROBS = "answers of this API have no logprobs; /v1/chat/completions has"
_REFUSED = {
    "mcp_servers": Refused(_NO_TOOLS_HERE, ([],)),
    "container": Refused(_NO_TOOLS_HERE, ("", {})),
    "stop": Refused("stop_sequences replaces it"),
    "user": Refused("metadata.user_id replaces it"),
    "response_format": Refused("output_config.format replaces it"),
    "thinking_token_budget": Refused("thinking.budget_tokens replaces it"),
    "stream_options": Refused("streams always have the usage"),
    "logprob_token_ids": Refused(_NO_LOGPROBS, ([],)),
    "return_tokens_as_token_ids": Refused(_NO_LOGPROBS, (False,)),
    "truncate_prompt_tokens": Refused("conversations are not truncated"),
    "truncation_side": Refused("conversations are not truncated"),
    "documents": Refused("blocks of type document replace it"),
}


def chat_of(body: MessagesRequest) -> ChatCompletionRequest:
    """Converts a conversation to continue into a chat request.

    Raises:
        InvalidRequest: something in it is malformed, or not supported by Quire.
    """
    check_shared(body, _REFUSED)
    messages = conversation(body)
    is_begun = _is_begun(messages)
    choice, thinking = body.tool_choice, body.thinking
    config = body.output_config
    wanted = config.format if config else None
    tools = _tools(body.tools)
    return ChatCompletionRequest(
        messages=messages,
        stop=body.stop_sequences,
        user=body.metadata.user_id if body.metadata else None,
        tools=tools,
        tool_choice=_tool_choice(body) if tools or (choice and choice.type in ("any", "tool")) else None,
        parallel_tool_calls=False if choice and choice.disable_parallel_tool_use else None,
        response_format=ResponseFormat(wanted.type, JsonSchemaFormat("answer", schema=wanted.schema))
        if wanted
        else None,
        reasoning_effort=config.effort if config else None,
        include_reasoning=False if thinking and thinking.display == "omitted" else body.include_reasoning,
        thinking_token_budget=thinking.budget_tokens if thinking and thinking.type == "enabled" else None,
        chat_template_kwargs=_template_variables(body),
        add_generation_prompt=not is_begun,
        continue_final_message=is_begun,
        **shared_fields(body, {*_REFUSED, "include_reasoning", "chat_template_kwargs"}),
    )


def tokenize_request_of(body: CountTokensRequest) -> TokenizeRequest:
    """Converts a conversation whose tokens are to be counted; raises as `chat_of`."""
    check_shared(body, _REFUSED)
    messages = conversation(body)
    is_begun = _is_begun(messages)
    return TokenizeRequest(
        model=body.model, messages=messages, tools=_tools(body.tools),
        reasoning_effort=body.output_config.effort if body.output_config else None,
        chat_template=body.chat_template, chat_template_kwargs=_template_variables(body),
        add_special_tokens=body.add_special_tokens, add_generation_prompt=not is_begun,
        continue_final_message=is_begun, mm_processor_kwargs=body.mm_processor_kwargs,
        media_io_kwargs=body.media_io_kwargs,
    )  # fmt: skip


def _is_begun(conversation: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the conversation ends with an assistant message, which is then continued."""
    if not conversation or conversation[-1]["role"] != "assistant":
        return False
    if conversation[-1].get("tool_calls"):
        raise InvalidRequest(
            "The last message calls a tool: send its result as a tool_result block in a user message.",
            parameter="messages",
        )
    return True


def _template_variables(body: CountTokensRequest) -> dict[str, Any] | None:
    switches = thinking_switched(body.thinking.type != "disabled") if body.thinking else {}
    return switches | (body.chat_template_kwargs or {}) or None


def _tools(tools: Sequence[MessagesTool] | None) -> list[dict[str, Any]] | None:
    if not tools:
        return None
    found = []
    for index, tool in enumerate(tools):
        if tool.type not in _OFFERED:
            continue
        if tool.input_schema is None:
            raise InvalidRequest(f"tools[{index}] ({tool.name[:64]!r}) needs an input_schema.", parameter="tools")
        function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
        found.append({"type": "function", "function": function | ({"strict": tool.strict} if tool.strict else {})})
    return found or None


def left_out(tools: Sequence[MessagesTool] | None) -> list[str]:
    """Returns the types of the tools that are not offered: Anthropic runs them, or only its models know them."""
    return [str(tool.type) for tool in tools or () if tool.type not in _OFFERED]


def _tool_choice(body: CountTokensRequest) -> str | dict[str, Any] | None:
    choice = body.tool_choice
    if choice is None:
        return None
    if choice.type == "tool":
        if not choice.name:
            raise InvalidRequest(
                f"tool_choice of type tool needs a name, as in {_NAMED_FORM}.", parameter="tool_choice"
            )
        return {"type": "function", "function": {"name": choice.name}}
    return {"auto": "auto", "any": "required", "none": "none"}[choice.type]
