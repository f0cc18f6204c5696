"""The format of thinking of the models behind this gateway, and what it looks like in their tokens."""

from __future__ import annotations

import itertools

from gateway.reasoning_parsers.base import ReasoningParser
from gateway.requests.thinking import MarkTokens, Thinking, thinking_after
from gateway.services.tokenizer import Tokenizer

_BLANKS = ("\n", "\n\n")


class ReasoningFormat:
    """Knows the tokens of the marks once a first request has asked for them."""

    def __init__(self, parser: type[ReasoningParser], tokenizer: Tokenizer) -> None:
        self.parser = parser
        self._tokenizer = tokenizer
        self._tokens: MarkTokens | None = None

    async def thinking(self, prompt: str, *, is_continued: bool) -> Thinking:
        """How answers to a rendered prompt think; see `thinking_after`.

        Raises:
            Unavailable: the tokenizer service cannot be asked.
        """
        if self._tokens is None:
            self._tokens = await self._ask()
        return thinking_after(prompt, self.parser, self._tokens, is_continued=is_continued)

    async def _ask(self) -> MarkTokens:
        texts = (self.parser.start_mark, self.parser.end_mark, self.parser.stretch_end_mark, *_BLANKS)
        start, end, stretch_end, *blanks = (
            tuple(sequence.token_ids) for sequence in await self._tokenizer.encode(texts, add_special_tokens=False)
        )
        return MarkTokens(start, end, stretch_end, tuple(dict.fromkeys(itertools.chain(*blanks))))
