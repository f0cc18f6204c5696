"""The result of rendering a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Rendered:
    """A conversation as text, and as token ids if rendering yields those too."""

    text: str
    token_ids: tuple[int, ...] | None = None


class Templates(Protocol):
    """Renders conversations; see ChatTemplates."""

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
        template: str | None,
        default_effort: str = "",
        placeholders: Mapping[str, str] = {},
        interleaves: bool = False,
        separator: str = "\n",
    ) -> Rendered:
        """See ChatTemplates.render."""
        ...
