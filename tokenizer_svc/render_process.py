"""The child process that renders chat templates (see `child`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tokenizer_svc.chat_template import ChatTemplates, TemplateRejection
from tokenizer_svc.child import Answer, Message, run
from tokenizer_svc.content_format import with_text_content
from tokenizer_svc.rendered import Templates
from tokenizer_svc.score_template import score_texts


def _make(setup: Message) -> Answer:
    fields = setup.fields
    templates = _templates(fields)

    def answer(request: Message) -> Message:
        try:
            if request.fields.pop("are_pairs", False):
                return Message({"texts": score_texts(templates, json.loads(request.payload), **request.fields)})
            messages = _messages(request.payload, fields["max_messages"])
            if request.fields.pop("as_they_are", False):
                return _told(_joined(messages, **request.fields))
            rendered = templates.render(messages, request.fields.pop("tools"), **request.fields)
        except TemplateRejection as error:
            return Message({"error": str(error)[:2000], "parameter": error.parameter})
        return _told(rendered.text, rendered.token_ids)

    return answer


def _joined(messages: list[dict[str, Any]], **of_media: Any) -> str:
    """The contents one after another; see `with_text_content`."""
    try:
        return "".join(each["content"] for each in with_text_content(messages, **of_media))
    except (KeyError, TypeError, AttributeError) as error:
        raise TemplateRejection("Each of messages must have a text, or a list of parts with texts or media.") from error


def _told(text: str, token_ids: Sequence[int] | None = None) -> Message:
    return Message({"token_ids": token_ids}, text.encode("utf-8", "surrogatepass"))


def _templates(fields: dict[str, Any]) -> Templates:
    if fields["conversations"]:
        from tokenizer_svc.mistral_conversations import MistralConversations

        return MistralConversations(fields["conversations"], fields["max_chars"])
    return ChatTemplates(fields["templates"], fields["special_tokens"], fields["max_chars"], fields["content_format"])


def _messages(text: bytes, most: int) -> list[dict[str, Any]]:
    """Parses the messages. Done here and not where the request arrived, because it is slow for long conversations."""
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
