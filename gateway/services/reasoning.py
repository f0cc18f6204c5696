"""The reasoning format of the served models, and the token ids of its marks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from gateway.reasoning_parsers.base import ReasoningParser
from gateway.requests.template_variables import thinking_switched
from gateway.requests.thinking import MarkTokens, Thinking, thinking_after
from gateway.services.tokenizer import Tokenizer
from quire.errors import FailedPrecondition, InvalidRequest

_BLANKS = ("\n", "\n\n")
_ANY_CHAT = b'[{"role": "user", "content": "?"}]'


class ReasoningFormat:
    """A reasoning parser and the token ids of its marks, which the first request looks up."""

    def __init__(self, parser: type[ReasoningParser], tokenizer: Tokenizer, closing: str = "") -> None:
        """
        Args:
            closing: what is forced before the end mark once a thinking budget is used up.
        """
        self.parser, self._closing = parser, closing
        self._tokenizer = tokenizer
        self._tokens: MarkTokens | None = None
        self._is_opened_by_template: bool | None = None

    async def thinking(
        self, prompt: str, *, continued: Sequence[str] = (), is_constrained: bool = False, switch: Any = None
    ) -> Thinking:
        """Determines how the answer to a rendered prompt reasons; see `thinking_after`.

        Args:
            is_constrained: whether the answer must satisfy a constraint, which applies from the first token if the
                model does not reason.
            switch: the request's own setting for reasoning; None if it has none.

        Raises:
            Unavailable: the tokenizer service cannot be reached.
        """
        if self._tokens is None:
            self._tokens = await self._ask()
        may_open = not is_constrained or (not await self._is_off() if switch is None else bool(switch))
        return thinking_after(prompt, self.parser, self._tokens, continued=continued, may_open=may_open)

    async def _is_off(self) -> bool:
        """Whether the model reasons only when asked to.

        Such models' chat templates open the reasoning themselves when it is switched on. Other templates leave opening
        it to the model, and close it when it is not wanted.
        """
        if self._is_opened_by_template is None:
            try:
                rendered = await self._tokenizer.render_chat(
                    _ANY_CHAT, add_generation_prompt=True, continue_final_message=False, add_special_tokens=False,
                    template=None, kwargs=thinking_switched(True), with_text=True,
                )  # fmt: skip
                self._is_opened_by_template = rendered.text.rstrip().endswith(self.parser.start_mark.rstrip())
            except (InvalidRequest, FailedPrecondition):  # there is no template, or it rejects this chat
                self._is_opened_by_template = False
        return self._is_opened_by_template

    async def _ask(self) -> MarkTokens:
        marks = self.parser.start_mark, self.parser.end_mark, self.parser.stretch_end_mark
        texts = (*marks, self._closing, *_BLANKS)
        start, end, stretch_end, closing, *blanks = (
            tuple(sequence.token_ids) for sequence in await self._tokenizer.encode(texts, add_special_tokens=False)
        )
        return MarkTokens(start, end, stretch_end, tuple(dict.fromkeys(itertools.chain(*blanks))), closing)
