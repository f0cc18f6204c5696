"""The process that renders chat templates (see `child`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from tokenizer_svc.chat_template import ChatTemplates, TemplateRejection
from tokenizer_svc.child import Answer, Message, run
from tokenizer_svc.rendered import Rendered


class Templates(Protocol):
    """What writes conversations; see ChatTemplates."""

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
        template: str | None,
    ) -> Rendered:
        """See ChatTemplates.render."""
        ...


def _make(setup: Message) -> Answer:
    fields = setup.fields
    templates = _templates(fields)

    def answer(request: Message) -> Message:
        try:
            messages = _messages(request.payload, fields["max_messages"])
            rendered = templates.render(messages, request.fields.pop("tools"), **request.fields)
        except TemplateRejection as error:
            return Message({"error": str(error)[:2000]})
        return Message({"token_ids": rendered.token_ids}, rendered.text.encode("utf-8", "surrogatepass"))

    return answer


def _templates(fields: dict[str, Any]) -> Templates:
    if fields["conversations"]:
        from tokenizer_svc.mistral_conversations import MistralConversations

        return MistralConversations(fields["conversations"], fields["max_chars"])
    return ChatTemplates(fields["templates"], fields["special_tokens"], fields["max_chars"], fields["content_format"])


def _messages(text: bytes, most: int) -> list[dict[str, Any]]:
    """Parsed here and not where the request came in: it takes long for a long conversation."""
    try:
        messages = json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise TemplateRejection(f"messages is not UTF-8: {error}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise TemplateRejection(f"messages is not valid JSON: {error}") from error
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise TemplateRejection("messages must be a list of objects.")
    if not 1 <= len(messages) <= most:
        raise TemplateRejection(f"There are {len(messages)} messages; 1 to {most} can be rendered.")
    return messages


if __name__ == "__main__":
    run(_make)
