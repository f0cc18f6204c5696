"""OpenAI's role `developer`, for chat templates that do not know it."""

from __future__ import annotations

import re
from typing import Any

from tokenizer_svc.content_format import with_text_content

_QUOTED = re.compile(r"""['"]developer['"]""")
_INSTRUCTING = ("system", "developer")


def knows_developers(template: str) -> bool:
    """Whether the template does something of its own with messages of this role."""
    return bool(_QUOTED.search(template))


def without_developers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with its system and developer messages as one system message, if it has any of the latter.

    That message comes first, because many templates accept a system message nowhere else.
    """
    if not any(message.get("role") == "developer" for message in messages):
        return messages
    instructions = [message for message in messages if message.get("role") in _INSTRUCTING]
    others = [message for message in messages if message.get("role") not in _INSTRUCTING]
    if len(instructions) == 1:
        return [{**instructions[0], "role": "system"}, *others]
    texts = [message.get("content") or "" for message in with_text_content(instructions)]
    return [{"role": "system", "content": "\n".join(texts)}, *others]
