"""llguidance: an Earley parser over a lexer of regular-expression derivatives, which computes masks in microseconds.

The compiled form is llguidance's grammar text: an engine builds a parser from it in a millisecond.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from quire.errors import InvalidRequest
from quire.structured.base import Backend, ConstraintRequest, Form, Grammar, Inexpressible, Matcher
from quire.structured.structural_tags import TagGrammar
from quire.structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Whitespace between the parts of JSON: a line break with indentation, or a few spaces. A model that is unsure what
# comes next would otherwise generate whitespace until its tokens run out.
_WHITESPACE = r"[ \t]{0,8}(\r?\n[ \t]{0,64})?"
# Parts of llguidance's messages on schemas that are valid but that it cannot express.
_UNIMPLEMENTED = ("Unimplemented", "not supported", "Unknown format", "Enable 'coerce_one_of'")
# Start of its message on a grammar in which no output ever ends.
_DEAD_END = "NoExtension"
# llguidance walks a grammar recursively: it must fit the stack of the thread that reads it (see STACK_BYTES). The
# shortest rules that refer to one another yield about 45,000 of them in this size.
_MOST_GRAMMAR_BYTES = 2**19
_MOST_MESSAGE = 500
# llguidance 1.9.1 recurses without end, until its process dies, over a `const` or `enum` with this value.
_DEADLY = -(2.0**63)
_NEGATIVE_NUMBER = re.compile(rb"-\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
# Bound on simultaneously open alternatives: more than a grammar of the size above has.
_MOST_ALTERNATIVES = 20_000
_SILENT = 0


class GuidanceBackend(Backend):
    """See Backend."""

    name = "guidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._eos_token_ids = _end_of_sequence(vocabulary)
        self._lock = threading.Lock()

    def compile(self, request: ConstraintRequest) -> bytes:
        """See Backend.compile."""
        try:
            grammar = self._grammar(request)
        except ValueError as error:
            raise _refusal(str(error)) from error
        matcher = self._matcher(grammar.encode())
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        if not any(mask) and not matcher.is_accepting():
            raise InvalidRequest("No output can satisfy the constraint: no first token is possible.")
        return grammar.encode()

    def _grammar(self, request: ConstraintRequest) -> str:
        if request.form is Form.STRUCTURAL_TAG:
            return _structural_tag(request, self._vocabulary.names)
        return _COMPILERS[request.form](request)

    def read(self, grammar: bytes) -> Grammar:
        """See Backend.read."""
        matcher = self._matcher(grammar)
        matcher.compute_bitmask()  # warms up vocabulary data that all sequences share
        return GuidanceGrammar(matcher, self._eos_token_ids)

    def _matcher(self, grammar: bytes) -> LLMatcher:
        """A matcher at the beginning of an output. (LLMatcher's own way to validate a grammar does not catch panics.)

        Raises:
            InvalidRequest: it is not a grammar, or too large.
        """
        _check_size(grammar)
        _check_numbers(grammar)
        try:
            matcher = LLMatcher(self._tokenizer, grammar.decode(), log_level=_SILENT, limits=_limits())
        except ValueError as error:  # includes UnicodeDecodeError
            raise _refusal(str(error)) from error
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        return matcher

    @property
    def _tokenizer(self) -> LLTokenizer:
        with self._lock:
            return self._made_tokenizer

    @cached_property
    def _made_tokenizer(self) -> LLTokenizer:
        wrapper: Any = _Wrapper(self._vocabulary, self._eos_token_ids[0])
        return LLTokenizer(wrapper, self._vocabulary.size, list(self._eos_token_ids))


class GuidanceGrammar(Grammar):
    """See Grammar."""

    def __init__(self, beginning: LLMatcher, eos_token_ids: Sequence[int]) -> None:
        self._beginning = beginning
        self._eos = [(token_id // 32, 0xFFFFFFFF ^ (1 << token_id % 32)) for token_id in eos_token_ids]
        self._lock = threading.Lock()

    def matcher(self) -> Matcher:
        """See Grammar.matcher."""
        with self._lock:
            return GuidanceMatcher(self._beginning.deep_copy(), self._eos)


class GuidanceMatcher(Matcher):
    """See Matcher."""

    def __init__(self, matcher: LLMatcher, eos: list[tuple[int, int]]) -> None:
        self._matcher = matcher
        self._eos = eos  # for each token: its word, and the complement of its bit

    @property
    def error(self) -> str:
        """See Matcher.error."""
        return _shortened(self._matcher.get_error()) if self._matcher.is_error() else ""

    @property
    def is_complete(self) -> bool:
        """See Matcher.is_complete."""
        return not self._matcher.is_error() and self._matcher.is_accepting()

    @property
    def is_stopped(self) -> bool:
        """See Matcher.is_stopped."""
        return self._matcher.is_stopped()

    def accept(self, token_ids: Sequence[int]) -> int:
        """See Matcher.accept."""
        return 0 if self._matcher.is_error() else self._matcher.try_consume_tokens(list(token_ids))

    def roll_back(self, num_tokens: int) -> None:
        """See Matcher.roll_back."""
        self._matcher.rollback(num_tokens)

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """See Matcher.fill."""
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        words = row.view("uint32")
        for word, others in self._eos:
            words[word] &= others


def _end_of_sequence(vocabulary: Vocabulary) -> tuple[int, ...]:
    """The tokens that end a sequence. llguidance needs at least one: if the model has none, uses one without text."""
    no_text = (token_id for token_id, token in enumerate(vocabulary.tokens) if not token)
    spare = min(vocabulary.special_token_ids, default=next(no_text, vocabulary.size - 1))
    return vocabulary.eos_token_ids or (spare,)


class _Wrapper:
    """The vocabulary in the interface that llguidance expects."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, eos_token_id: int) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = eos_token_id
        names = {token_id: name.encode() for name, token_id in vocabulary.names.items()}
        self.tokens = [names.get(token_id, token) for token_id, token in enumerate(vocabulary.tokens)]
        self.special_token_ids = sorted(vocabulary.special_token_ids)

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokens for bytes that are forced by the grammar."""
        return self._vocabulary.encode(text.encode() if isinstance(text, str) else text)


def _json_schema(request: ConstraintRequest) -> str:
    schema = _parse_json(request.text, "JSON schema")
    if not isinstance(schema, dict | bool):
        raise ValueError("a JSON schema must be an object, true or false")
    return f'{{"grammars": [{{"json_schema": {_schema_text(schema, request)}}}]}}'


def _with_whitespace(schema: dict[str, Any] | bool, request: ConstraintRequest) -> dict[str, Any]:
    """The schema with the whitespace allowed between the parts of its values; overrides what the schema says about
    that."""
    schema = ({} if schema else {"enum": []}) if isinstance(schema, bool) else dict(schema)
    pattern = request.whitespace_pattern or _WHITESPACE
    schema["x-guidance"] = (
        {"whitespace_flexible": False} if request.disable_any_whitespace else {"whitespace_pattern": pattern}
    )
    return schema


def _close(schema: Any) -> None:
    """Disallows further properties in objects that do not say whether they allow them."""
    for each in _parts(schema):
        if "properties" in each:
            each.setdefault("additionalProperties", False)


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yields every object in a schema."""
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            yield part
            todo += part.values()
        elif isinstance(part, list):
            todo += part


def _regex(request: ConstraintRequest) -> str:
    grammar: str = LLMatcher.grammar_from_regex(request.text)
    return grammar


def _grammar(request: ConstraintRequest) -> str:
    try:
        lark = any_to_lark(request.text)
    except Exception as error:  # its parser may raise anything
        raise ValueError(f"it is in neither Lark nor GBNF notation: {error}") from error
    grammar: str = LLMatcher.grammar_from_lark(lark)
    return grammar


def _choices(request: ConstraintRequest) -> str:
    """The choices as one token of the lexer, which share its automaton: as alternatives of a rule, at most 2,000 would
    be possible."""
    texts = " | ".join(map(json.dumps, request.choices))
    grammar: str = LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {texts}")
    return grammar


def _structural_tag(request: ConstraintRequest, special_tokens: Mapping[str, int]) -> str:
    grammar = TagGrammar(special_tokens, lambda schema: _schema_text(schema, request))
    try:
        text = grammar.write(_parse_json(request.text, "structural tag"))
    except NotImplementedError as error:
        raise Inexpressible(f"guidance does not support {error} in structural tags.") from error
    lark: str = LLMatcher.grammar_from_lark(text)
    return lark


def _schema_text(schema: dict[str, Any] | bool, request: ConstraintRequest) -> str:
    if request.disable_additional_properties:
        _close(schema)
    return json.dumps(_with_whitespace(schema, request))


_COMPILERS = {
    Form.JSON_SCHEMA: _json_schema,
    Form.REGEX: _regex,
    Form.GRAMMAR: _grammar,
    Form.CHOICES: _choices,
}


def _parse_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the {what} is not valid JSON: {error}") from error


def _check_size(grammar: bytes) -> None:
    if len(grammar) > _MOST_GRAMMAR_BYTES:
        raise InvalidRequest(
            f"The constraint has {len(grammar)} bytes as a grammar; at most {_MOST_GRAMMAR_BYTES} are allowed."
        )


def _check_numbers(grammar: bytes) -> None:
    for found in _NEGATIVE_NUMBER.finditer(grammar):
        if float(found[0]) == _DEADLY:
            raise InvalidRequest(
                f"The constraint has the number {found[0].decode()[:50]}, which cannot be followed; use one of fewer "
                "digits, or leave it out."
            )


def _refusal(message: str) -> InvalidRequest:
    """The error for the caller for a message of llguidance."""
    if message.startswith(_DEAD_END):
        return InvalidRequest("The constraint cannot be followed: no output satisfies it.")
    kind = Inexpressible if any(word in message for word in _UNIMPLEMENTED) else InvalidRequest
    return kind(f"The constraint cannot be followed: {_shortened(message)}")


def _shortened(message: str) -> str:
    """The message without the parser's state, which llguidance appends in angle brackets."""
    return message.partition("\n<")[0].strip()[:_MOST_MESSAGE]


def _limits() -> LLParserLimits:
    return LLParserLimits(verbose_errors=False, max_items_in_row=_MOST_ALTERNATIVES)
