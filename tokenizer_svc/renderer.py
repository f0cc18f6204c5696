"""Renders chat templates in child processes that can be killed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from quire.bounds import MAX_MESSAGES
from quire.errors import InvalidRequest
from tokenizer_svc.child import Message
from tokenizer_svc.child_pool import ChildEnded, ChildPool, ChildTooSlow
from tokenizer_svc.rendered import Rendered

# The roles of a query-document pair, as a template quotes them.
_PAIR_ROLES = tuple(re.compile(rf"""['"]{role}['"]""") for role in ("query", "document"))


def is_score_template(template: str) -> bool:
    """Whether the template writes a scoring prompt for a query and a document."""
    return all(role.search(template) for role in _PAIR_ROLES)


class ChatRenderer:
    """Renders conversations, and query-document pairs, as text."""

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        timeout_seconds: float,
        max_chars: int,
        content_format: str = "auto",
        conversations: str = "",
    ) -> None:
        """
        Args:
            conversations: see TokenizerFiles; used in place of templates.
        """
        setup = {
            "templates": dict(templates), "special_tokens": dict(special_tokens),
            "max_chars": max_chars, "max_messages": MAX_MESSAGES, "content_format": content_format,
            "conversations": conversations,
        }  # fmt: skip
        self._pool = ChildPool(
            "tokenizer_svc.render_process", Message(setup), _without_template(_PROBE) if conversations else _PROBE,
            work="conversations to render", timeout_seconds=timeout_seconds,
        )  # fmt: skip
        self._timeout_seconds = timeout_seconds
        self._max_chars = max_chars
        self.template = templates.get("default", "")
        self.has_template = bool(self.template or conversations)
        # Whether the template renders query-document pairs.
        self.has_score_template = is_score_template(self.template) and not conversations

    async def start(self) -> None:
        """Starts a process and waits until it is ready.

        Raises:
            Unavailable: the process does not start.
        """
        await self._pool.start()

    async def close(self) -> None:
        """Ends the processes."""
        await self._pool.close()

    async def render(self, messages_json: bytes, **request: Any) -> Rendered:
        """See `ChatTemplates.render`.

        Args:
            messages_json: the conversation, passed to the process as is.

        Raises:
            InvalidRequest: the template cannot render this conversation, or takes too much time or memory.
            Overloaded: too many conversations wait already, or the machine is too busy.
        """
        answer = await self._ask(Message(request, messages_json), "messages")
        token_ids = answer.fields["token_ids"]
        text = answer.payload.decode("utf-8", "surrogatepass")
        return Rendered(text, None if token_ids is None else tuple(token_ids))

    async def join(self, messages_json: bytes, **request: Any) -> Rendered:
        """The contents of messages one after another as they are; see `with_text_content`, and for errors `render`."""
        return await self.render(messages_json, as_they_are=True, **request)

    async def render_pairs(
        self, pairs: Sequence[tuple[str, str]], variables: Mapping[str, Any], template: str | None
    ) -> list[str]:
        """See `score_texts`.

        Raises: see `render`.
        """
        request = {"are_pairs": True, "variables": variables, "template": template, "max_chars": self._max_chars}
        answer = await self._ask(Message(request, json.dumps(pairs).encode()), "documents")
        return list(answer.fields["texts"])

    async def _ask(self, request: Message, parameter: str) -> Message:
        try:
            answer = await self._pool.ask(request)
        except ChildTooSlow:
            problem = f"The chat template took longer than {self._timeout_seconds:g} s for this conversation."
        except ChildEnded:
            problem = "The chat template used too much memory or nested too deeply for this conversation."
        else:
            if (problem := answer.fields.get("error", "")) == "":
                return answer
            parameter = answer.fields["parameter"] or parameter
        raise InvalidRequest(problem, parameter=parameter)


def _without_template(probe: Message) -> Message:
    return Message({**probe.fields, "template": None}, probe.payload)


_PROBE = Message(
    {
        "tools": None, "add_generation_prompt": False, "continue_final_message": False, "variables": {},
        "template": "ready",
    },
    b'[{"role": "user", "content": ""}]',
)  # fmt: skip
