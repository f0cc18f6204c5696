"""XGrammar: a pushdown automaton whose masks are precomputed for each of its states when a grammar is compiled.

The compiled form is XGrammar's own JSON serialization. Both halves see the vocabulary without the unused ids at its
end, so that a model which pads its vocabulary makes no difference. An additional id stands for the end of the text:
XGrammar uses it to say that an output may end; it is not one of the model's tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xgrammar

from quire.errors import InvalidRequest
from quire.structured.base import Backend, ConstraintRequest, Form, Grammar, Inexpressible, Matcher, mask_words
from quire.structured.json_keywords import parse_schema, schemas_in
from quire.structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    import numpy.typing as npt

_MOST_WHITESPACE = 8
# Characters that stand for themselves in JSON strings: no quotes, backslashes, control characters or surrogates.
_PLAIN = " !#-\\[\\]-\ud7ff\ue000-\U0010ffff"
_MOST_MESSAGE = 500
_PLACE = re.compile(r"\[[\d:]+\] \S+:\d+: ")


class XGrammarBackend(Backend):
    """See Backend."""

    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = [b"" if token_id in vocabulary.special_token_ids else token
                  for token_id, token in enumerate(vocabulary.tokens)]  # fmt: skip
        while tokens and not tokens[-1]:
            tokens.pop()
        self._end = len(tokens)
        self._tokenizer = xgrammar.TokenizerInfo(
            [*tokens, b""], vocab_type=xgrammar.VocabType.RAW, vocab_size=len(tokens) + 1, stop_token_ids=[self._end]
        )

    def compile(self, request: ConstraintRequest) -> bytes:
        """See Backend.compile."""
        if request.whitespace_pattern:
            raise Inexpressible("xgrammar does not support whitespace_pattern.")
        compiler = xgrammar.GrammarCompiler(self._tokenizer, max_threads=1, cache_enabled=False)
        try:
            compiled = _compile(compiler, request)
        except (RuntimeError, ValueError) as error:
            # It does not distinguish malformed constraints from unsupported ones.
            kind = InvalidRequest if request.form is Form.JSON_SCHEMA else Inexpressible
            raise kind(f"The constraint cannot be followed: {_first_line(error)}") from error
        grammar: bytes = compiled.serialize_json().encode()
        row = np.zeros(mask_words(self._end + 1), np.int32)
        XGrammarMatcher(xgrammar.GrammarMatcher(compiled), self._end).fill(row)
        if not row.any() and not xgrammar.GrammarMatcher(compiled).is_completed():
            raise InvalidRequest("The constraint cannot be followed: no output satisfies it.")
        return grammar

    def read(self, grammar: bytes) -> Grammar:
        """See Backend.read."""
        try:
            compiled = xgrammar.CompiledGrammar.deserialize_json(grammar.decode(), self._tokenizer)
        except (RuntimeError, ValueError) as error:  # includes UnicodeDecodeError
            raise InvalidRequest(f"The constraint cannot be followed: {_first_line(error)}") from error
        return XGrammarGrammar(compiled, self._end)


class XGrammarGrammar(Grammar):
    """See Grammar."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, end: int) -> None:
        self._compiled = compiled
        self._end = end

    def matcher(self) -> Matcher:
        """See Grammar.matcher."""
        return XGrammarMatcher(xgrammar.GrammarMatcher(self._compiled), self._end)


class XGrammarMatcher(Matcher):
    """See Matcher."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, end: int) -> None:
        """
        Args:
            end: the id that stands for the end of the text.
        """
        self._matcher = matcher
        self._end = end

    @property
    def error(self) -> str:
        """See Matcher.error."""
        return ""

    @property
    def is_complete(self) -> bool:
        """See Matcher.is_complete."""
        return bool(self._matcher.is_completed())

    @property
    def is_stopped(self) -> bool:
        """See Matcher.is_stopped: an empty mask shows it."""
        return False

    def accept(self, token_ids: Sequence[int]) -> int:
        """See Matcher.accept."""
        for count, token_id in enumerate(token_ids):
            if token_id >= self._end or not self._matcher.accept_token(token_id):
                return count
        return len(token_ids)

    def roll_back(self, num_tokens: int) -> None:
        """See Matcher.roll_back."""
        self._matcher.rollback(num_tokens)

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """See Matcher.fill."""
        words = mask_words(self._end + 1)
        own = row[:words] if len(row) >= words else np.zeros(words, np.int32)
        self._matcher.fill_next_token_bitmask(own.reshape(1, -1))
        own.view(np.uint32)[self._end // 32] &= np.uint32((1 << self._end % 32) - 1)
        row[: len(own)] = own[: len(row)]
        row[words:] = 0


def _compile(compiler: xgrammar.GrammarCompiler, request: ConstraintRequest) -> xgrammar.CompiledGrammar:
    if request.form is Form.JSON_SCHEMA:
        schema = parse_schema(request.text, "xgrammar")
        for part in schemas_in(schema):
            _bound_length(part)
        return compiler.compile_json_schema(json.dumps(schema), **_switches(request))
    if request.form is Form.REGEX:
        return compiler.compile_regex(request.text)
    if request.form is Form.CHOICES:
        texts = (json.dumps(text, ensure_ascii=False) for text in request.choices)
        return compiler.compile_grammar("root ::= " + " | ".join(texts))
    if request.form is Form.GRAMMAR:
        if "::=" not in request.text:
            raise Inexpressible("xgrammar only supports grammars in GBNF notation, with a rule named root.")
        return compiler.compile_grammar(request.text)
    raise Inexpressible("xgrammar is not used for structural tags.")


def _bound_length(part: Any) -> None:
    """Replaces bounds on a string's length by a pattern: XGrammar's own length bounds allow strings that are invalid
    JSON."""
    if not isinstance(part, dict) or not part.keys() & {"minLength", "maxLength"}:
        return
    if part.get("type") != "string":
        raise Inexpressible("xgrammar supports bounds on the length only for the type string.")
    least, most = part.pop("minLength", 0), part.pop("maxLength", "")
    part["pattern"] = f"^[{_PLAIN}]{{{least},{most}}}$"


def _switches(request: ConstraintRequest) -> dict[str, Any]:
    return {
        "any_whitespace": not request.disable_any_whitespace,
        "separators": (",", ":") if request.disable_any_whitespace else None,
        "max_whitespace_cnt": None if request.disable_any_whitespace else _MOST_WHITESPACE,
        "strict_mode": request.disable_additional_properties,
    }


def _first_line(error: Exception) -> str:
    """The error's first line, without the leading location in XGrammar's sources."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return _PLACE.sub("", line)[:_MOST_MESSAGE]
