"""Mistral's two formats: a token and a JSON list; or for each call a token, the name and JSON."""

from __future__ import annotations

import secrets
import string

from gateway.tool_parsers.base import CallSyntax
from gateway.tool_parsers.json_calls import read_bare_arguments
from gateway.tool_parsers.json_lists import JsonListParser
from gateway.tool_parsers.scanner import NotACallError, Steps

_ID_CHARACTERS = string.ascii_letters + string.digits


class Mistral(JsonListParser):
    """Tokenizers up to version 7 use the list, those since 11 the other format. Call ids are as templates need them."""

    begins = ("[TOOL_CALLS]",)
    special_tokens = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")

    @classmethod
    def other_syntax(cls, name: str) -> CallSyntax:
        return CallSyntax(f"[TOOL_CALLS]{name}[ARGS]", "")

    def read_calls(self, marker: str) -> Steps[None]:
        if (yield from self.text.peek_past_space()) in "[{":
            yield from super().read_calls(marker)
        else:
            yield from self._read_block()

    def _read_block(self) -> Steps[None]:
        name, call_id = (yield from self.text.name()), ""
        yield from self.text.peek_past_space()
        if (yield from self.text.accept("[CALL_ID]")):
            call_id = yield from self.text.name()
        if not (yield from self.text.accept("[ARGS]")) and (yield from self.text.peek_past_space()) != "{":
            raise NotACallError
        self.begin_call(name, call_id)
        yield from read_bare_arguments(self.text, self.found.arguments)
        yield from self.close()

    def new_id(self, name: str) -> str:
        return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))
