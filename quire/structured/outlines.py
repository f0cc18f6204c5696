"""outlines-core: an automaton over tokens, computed in full when a constraint is compiled.

The compiled form is that automaton, in arrays of our own format: an engine does not need the library to follow it, and
malformed data can only be refused. It can express only regular languages, and large vocabularies make large automata.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.errors import InvalidRequest
from quire.structured.base import MAX_GRAMMAR_BYTES, Backend, ConstraintRequest, Form, Grammar, Inexpressible, Matcher
from quire.structured.json_keywords import check_no_recursion, parse_schema, schemas_in
from quire.structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    import numpy.typing as npt

# Appended to every text, and in none: where a text may end, outlines would otherwise drop continuations that do not end
# with their next token, and alternatives that continue after another one ends.
_END = b"\0"
_META = frozenset(r"\.+*?()|[]{}^$#&-~")
_MOST_MESSAGE = 500
_HEADER = struct.Struct("<4I")  # vocabulary size, number of states, number of transitions, start state
_INT = np.dtype("<u4")


class OutlinesBackend(Backend):
    """See Backend."""

    name = "outlines"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def compile(self, request: ConstraintRequest) -> bytes:
        """See Backend.compile."""
        from outlines_core import Index, Vocabulary  # engines follow without it

        end = self._vocabulary.size  # an id beyond the vocabulary, for the end of the text
        ids: dict[bytes, list[int]] = {_END: [end]}
        for token_id, token in enumerate(self._vocabulary.tokens):
            if token and _END not in token and token_id not in self._vocabulary.special_token_ids:
                ids.setdefault(token, []).append(token_id)
        try:
            index = Index(f"(?:{_regex_of(request)})\\x00", Vocabulary(end + 1, ids))
        except (ValueError, RuntimeError, TypeError) as error:  # TypeError: no JSON, such as NaN
            raise _refusal(str(error)) from error
        return _pack(index, end)

    def read(self, grammar: bytes) -> Grammar:
        """See Backend.read."""
        return OutlinesGrammar(grammar, self._vocabulary.size)


class OutlinesGrammar(Grammar):
    """See Grammar. The transitions of state s are at indices first[s] to first[s + 1], ordered by token id."""

    def __init__(self, grammar: bytes, vocab_size: int) -> None:
        if len(grammar) < _HEADER.size:
            raise _refusal("it is not an automaton")
        _, states, transitions, self.start = _HEADER.unpack_from(grammar)
        sizes = (states + 1, states, transitions, transitions)
        if _HEADER.size + 4 * sum(sizes) != len(grammar):
            raise _refusal("its size does not match its automaton")
        values = np.frombuffer(grammar, _INT, offset=_HEADER.size)
        self.first, self.is_final, self.token_ids, self.targets = np.split(values, np.cumsum(sizes)[:-1])
        in_order = bool(np.all(self.first[1:] >= self.first[:-1])) and int(self.first[-1]) == transitions
        ends = int(self.token_ids.max(initial=0)) < vocab_size and int(self.targets.max(initial=0)) < states
        if not (in_order and ends and self.start < states and int(self.first[0]) == 0):
            raise _refusal("its automaton is malformed, or belongs to another vocabulary")

    def matcher(self) -> Matcher:
        """See Grammar.matcher."""
        return OutlinesMatcher(self)


class OutlinesMatcher(Matcher):
    """See Matcher."""

    def __init__(self, grammar: OutlinesGrammar) -> None:
        self._grammar = grammar
        self._states = [grammar.start]  # history of states; the last one is the current one

    @property
    def error(self) -> str:
        """See Matcher.error."""
        return ""

    @property
    def is_complete(self) -> bool:
        """See Matcher.is_complete."""
        return bool(self._grammar.is_final[self._states[-1]])

    @property
    def is_stopped(self) -> bool:
        """See Matcher.is_stopped."""
        return not len(self._transitions())

    def accept(self, token_ids: Sequence[int]) -> int:
        """See Matcher.accept."""
        for count, token_id in enumerate(token_ids):
            may_follow = self._transitions()
            at = int(np.searchsorted(may_follow, token_id))
            if at == len(may_follow) or may_follow[at] != token_id:
                return count
            first = int(self._grammar.first[self._states[-1]])
            self._states.append(int(self._grammar.targets[first + at]))
        return len(token_ids)

    def roll_back(self, num_tokens: int) -> None:
        """See Matcher.roll_back."""
        del self._states[len(self._states) - num_tokens :]

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """See Matcher.fill."""
        bits = np.zeros(len(row) * 32, np.uint8)
        bits[self._transitions()] = 1
        row[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def _transitions(self) -> npt.NDArray[np.uint32]:
        """The ids of the tokens that may follow, ascending."""
        state = self._states[-1]
        found: npt.NDArray[np.uint32] = self._grammar.token_ids[
            self._grammar.first[state] : self._grammar.first[state + 1]
        ]
        return found


def _pack(index: Any, end: int) -> bytes:
    """Serializes the automaton as OutlinesGrammar reads it, without the id that stands for the end."""
    transitions: dict[int, dict[int, int]] = index.get_transitions()
    ended, start = set(index.get_final_states()), index.get_initial_state()
    finals = {state for state, targets in transitions.items() if targets.get(end) in ended}
    states = {state: number for number, state in enumerate({start, *transitions, *ended})}
    if 8 * sum(map(len, transitions.values())) > MAX_GRAMMAR_BYTES:
        raise Inexpressible("The automaton of outlines over this vocabulary is too large; make the constraint simpler.")
    first, token_ids, targets = [0], [], []
    for state in states:
        for token_id, target in sorted(transitions.get(state, {}).items()):
            if token_id < end:
                token_ids.append(token_id)
                targets.append(states[target])
        first.append(len(token_ids))
    if not token_ids and start not in finals:
        raise _refusal("no output satisfies it")
    header = _HEADER.pack(end, len(states), len(token_ids), states[start])
    is_final = [state in finals for state in states]
    return header + b"".join(np.asarray(part, _INT).tobytes() for part in (first, is_final, token_ids, targets))


def _regex_of(request: ConstraintRequest) -> str:
    if request.form is Form.REGEX:
        return request.text
    if request.form is Form.CHOICES:
        return "|".join(map(_escaped, request.choices))
    if request.form is Form.JSON_SCHEMA:
        return _regex_of_schema(request)
    raise Inexpressible("outlines only supports JSON schemas, regular expressions and choices.")


def _regex_of_schema(request: ConstraintRequest) -> str:
    from outlines_core.json_schema import build_regex_from_schema  # engines follow without it

    schema = parse_schema(request.text, "outlines")
    check_no_recursion(schema, "outlines")
    for part in schemas_in(schema):
        # Its objects have only the named properties, which satisfies anything the schema says about others.
        if isinstance(part, dict) and part.get("properties"):
            part.pop("additionalProperties", None)
        elif isinstance(part, dict) and "additionalProperties" in part:
            raise Inexpressible("outlines does not support additionalProperties without properties.")
    whitespace = "" if request.disable_any_whitespace else request.whitespace_pattern or None
    regex: str = build_regex_from_schema(json.dumps(schema), whitespace)
    return regex


def _escaped(text: str) -> str:
    return "".join(f"\\{character}" if character in _META else character for character in text)


def _refusal(message: str) -> InvalidRequest:
    # It does not distinguish malformed expressions from unsupported ones.
    known = any(word in message for word in ("Failed to build", "Unsupported", "unsupported"))
    return (Inexpressible if known else InvalidRequest)(f"The constraint cannot be followed: {message[:_MOST_MESSAGE]}")
