"""Converts requests of Anthropic's API to OpenAI chat requests, which the rest of the gateway works on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.constraints import JsonSchemaFormat, ResponseFormat
from gateway.protocol.messages import CountTokensRequest, MessagesRequest, MessagesTool
from gateway.protocol.tokens import TokenizeRequest
from gateway.requests.messages import PlacedPart
from gateway.requests.shared_fields import check_shared, shared_fields
from gateway.requests.template_variables import thinking_switched
from quire.compatibility.refused_fields import Refused
from quire.errors import InvalidRequest

Block = Mapping[str, Any]
_ROLES = ("user", "assistant", "system")
_NAMED_FORM = '{"type": "tool", "name": "…"}'
# Chat field → its name in this API, for error messages.
FIELDS = {
    "stop": "stop_sequences", "user": "metadata.user_id", "thinking_token_budget": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort", "response_format.json_schema.schema": "output_config.format.schema",
}  # fmt: skip
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
    conversation = _conversation(body)
    is_begun = _is_begun(conversation)
    choice, thinking = body.tool_choice, body.thinking
    config = body.output_config
    wanted = config.format if config else None
    return ChatCompletionRequest(
        messages=conversation,
        stop=body.stop_sequences,
        user=body.metadata.user_id if body.metadata else None,
        tools=_tools(body.tools),
        tool_choice=_tool_choice(body) if body.tools or (choice and choice.type in ("any", "tool")) else None,
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
    conversation = _conversation(body)
    is_begun = _is_begun(conversation)
    return TokenizeRequest(
        model=body.model, messages=conversation, tools=_tools(body.tools),
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
        if tool.type not in (None, "custom") or tool.input_schema is None:
            raise InvalidRequest(
                f"tools[{index}] ({tool.name[:64]!r}) needs an input_schema, and its type must be custom: only "
                "Anthropic's models know other types.", parameter="tools",
            )  # fmt: skip
        function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
        found.append({"type": "function", "function": function | ({"strict": tool.strict} if tool.strict else {})})
    return found


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


def _conversation(body: CountTokensRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if body.system:
        found.append({"role": "system", "content": _texts(body.system, "system")})
    called: dict[str, str] = {}  # call id → tool name
    for index, message in enumerate(body.messages):
        place, role = f"messages[{index}]", message.get("role")
        if role not in _ROLES:
            raise InvalidRequest(
                f"{place}.role is {str(role)[:50]!r}; it must be user or assistant.", parameter="messages"
            )
        found += _messages(role, _blocks(message.get("content"), f"{place}.content"), called)
    return found


def _blocks(content: Any, place: str) -> list[tuple[str, Block]]:
    """Returns the blocks of a content, with their places for error messages."""
    if isinstance(content, str):
        return [(place, {"type": "text", "text": content})]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise InvalidRequest(f"{place} must be a string or a list of blocks.", parameter="messages")
    return [(f"{place}[{index}]", block) for index, block in enumerate(content)]


def _messages(role: str, blocks: Iterable[tuple[str, Block]], called: dict[str, str]) -> list[dict[str, Any]]:
    """Converts one message. Tool results become messages of their own, before the user's text that came with them."""
    results, texts, calls, thoughts = [], [], [], []
    for place, block in blocks:
        match block.get("type"):
            case "text":
                texts.append({"type": "text", "text": _text(block, "text", place)})
            case "image" if role != "assistant":
                texts.append(_image(block, place))
            case "tool_result" if role == "user":
                results.append(_result(block, place, called))
            case "tool_use" if role == "assistant":
                calls.append(_call(block, place, called))
            case "thinking" if role == "assistant":
                thoughts.append(_text(block, "thinking", place))
            case kind:
                raise InvalidRequest(
                    f"{place} is a block of type {str(kind)[:50]!r}, which is not supported in a message of the "
                    f"{role}. Supported are text, image and tool_result (user), and tool_use and thinking (assistant).",
                    parameter="messages",
                )  # fmt: skip
    is_text = len(texts) == 1 and "text" in texts[0]
    said: dict[str, Any] = {"role": role, "content": texts[0]["text"] if is_text else texts}
    if thoughts:
        said["reasoning"] = "".join(thoughts)
    if calls:
        said |= {"tool_calls": calls, "content": said["content"] or None}
    return [*results, *([said] if texts or calls or thoughts or not results else [])]


def _text(block: Block, name: str, place: str) -> str:
    if not isinstance(text := block.get(name), str):
        raise InvalidRequest(f"{place}.{name} must be a string.", parameter="messages")
    return text


def _image(block: Block, place: str) -> dict[str, Any]:
    source = block.get("source")
    match source if isinstance(source, dict) else {}:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            url = f"data:{kind};base64,{data}"
        case {"type": "url", "url": str(url)}:
            pass
        case _:
            raise InvalidRequest(
                f'{place}.source must be {{"type": "base64", "media_type": "image/png", "data": "…"}} or '
                '{"type": "url", "url": "…"}.',
                parameter="messages",
            )
    return PlacedPart(place, type="image_url", image_url={"url": url})


def _texts(content: Any, place: str, *, with_images: bool = False) -> str | list[dict[str, Any]]:
    """Checks a content that may only contain text blocks, or images too, and converts it."""
    if isinstance(content, str):
        return content
    found = []
    for where, block in _blocks(content, place):
        if with_images and block.get("type") == "image":
            found.append(_image(block, where))
            continue
        if block.get("type") != "text":
            raise InvalidRequest(f"{where} must be a text block.", parameter=place.partition("[")[0])
        found.append({"type": "text", "text": _text(block, "text", where)})
    return found


def _call(block: Block, place: str, called: dict[str, str]) -> dict[str, Any]:
    name, given = _text(block, "name", place), block.get("input")
    if not isinstance(given, dict):
        raise InvalidRequest(f"{place}.input must be an object.", parameter="messages")
    called[_text(block, "id", place)] = name
    return {"id": block["id"], "type": "function", "function": {"name": name, "arguments": given}}


def _result(block: Block, place: str, called: Mapping[str, str]) -> dict[str, Any]:
    call = _text(block, "tool_use_id", place)
    if call not in called:
        raise InvalidRequest(
            f"{place}.tool_use_id is {call[:64]!r}, which no earlier tool_use has.", parameter="messages"
        )
    content = _texts(block.get("content") or "", f"{place}.content", with_images=True)
    return {"role": "tool", "tool_call_id": call, "name": called[call], "content": content}
