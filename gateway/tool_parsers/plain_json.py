"""JSON objects that make up the whole answer: `{"name": …, "parameters": …}`, separated by `;` if there are several."""

from __future__ import annotations

from gateway.tool_parsers.base import CallSyntax
from gateway.tool_parsers.json_calls import JsonCallParser
from gateway.tool_parsers.scanner import NotACallError, Steps

_PYTHON_TAG = "<|python_tag|>"


class LlamaJson(JsonCallParser):
    """Llama 3.1, 3.2 and 4: an object at the beginning of the text, or after a token. Later JSON is content."""

    begins = special_tokens = (_PYTHON_TAG,)
    bare = "{"
    doubtful = ("", _PYTHON_TAG)
    arguments_key = "parameters"

    def read_calls(self, marker: str) -> Steps[None]:
        if (yield from self.text.peek_past_space()) != "{":
            raise NotACallError
        yield from self.read_object(marker)
        while True:
            self.text.hold()
            following = yield from self.text.peek_past_space()
            if following == "{":
                yield from self.read_object(marker)
            elif following in ";,":
                self.text.take(1)
            else:
                self.found.content(self.text.release())
                return

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        call = cls.object_syntax(name)
        return CallSyntax(call.begin, call.end, separator="; ")
