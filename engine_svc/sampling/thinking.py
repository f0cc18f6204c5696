"""Reasoning marks as an automaton, so that the device can follow them without the host: see quire/reasoning.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from quire.reasoning import ReasoningMarks


class _State(NamedTuple):
    """State of an output. All fields are -1 if its reasoning has ended or it has none."""

    opened: int  # matched tokens of a start mark; -1 once it cannot come any more
    ended: int  # matched tokens of an end mark
    closed: int  # matched tokens of what is forced: what closes the reasoning, followed by an end mark


_DONE = _State(-1, -1, -1)


class _Step(NamedTuple):
    state: _State
    tokens: int  # additional reasoning tokens, including those of an end mark
    begins: bool = False  # reasoning begins with this token: earlier tokens do not count


@dataclass(frozen=True)
class ThinkingAutomaton:
    """A finite automaton.

    States are numbered from 0, the initial state. Tokens are grouped in classes: the index in `token_ids`, or the last
    class for all other tokens.
    """

    token_ids: list[int]
    following: list[list[int]]  # [states][classes], the state after a token
    tokens: list[list[int]]  # [states][classes], reasoning tokens added by a token
    begins: list[list[bool]]  # [states][classes], whether the count restarts with a token
    undecided: list[int]  # [states], reasoning tokens, unless they become a start mark
    # [states], the next token of a start mark that has begun, else of an end mark or of what closes the reasoning, of
    # whichever more has come; -1 outside of reasoning.
    marking: list[int]

    def follow(self, token_ids: list[int]) -> tuple[int, int]:
        """Returns the state after an output, and its number of reasoning tokens."""
        state = count = 0
        classes = {token_id: number for number, token_id in enumerate(self.token_ids)}
        for token_id in token_ids:
            number = classes.get(token_id, len(self.token_ids))
            count = self.tokens[state][number] + (0 if self.begins[state][number] else count)
            state = self.following[state][number]
        return state, count


def make_automaton(marks: ReasoningMarks) -> ThinkingAutomaton:
    """Builds the automaton for the output after a prompt.

    Args:
        marks: validated reasoning marks.
    """
    return _Builder(marks).build()


class _Pattern:
    """Finds a run of tokens, by the failure function of Knuth, Morris and Pratt."""

    def __init__(self, token_ids: tuple[int, ...]) -> None:
        self.token_ids = token_ids
        # For each length of a prefix, the longest shorter prefix that is also its suffix.
        self._shorter = [0] * len(token_ids)
        for count in range(2, len(token_ids)):
            self._shorter[count] = self.advance(self._shorter[count - 1], token_ids[count - 1])

    def advance(self, matched: int, token_id: int) -> int:
        """The number of matched tokens after one more token; before it, not all were matched."""
        while matched and token_id != self.token_ids[matched]:
            matched = self._shorter[matched]
        return matched + (token_id == self.token_ids[matched])


class _Builder:
    def __init__(self, marks: ReasoningMarks) -> None:
        self._marks = marks
        self._thinks = marks.is_open or not marks.is_optional
        self._end = _Pattern(marks.end_token_ids)
        self._closing = _Pattern((*marks.closing_token_ids, *marks.end_token_ids))

    def build(self) -> ThinkingAutomaton:
        marks = self._marks
        alphabet = list(dict.fromkeys((*marks.start_token_ids, *self._closing.token_ids, *marks.blank_token_ids)))
        first = _State(0, 0, 0) if marks.start_token_ids else _State(-1, 0, 0) if self._thinks else _DONE
        numbers, steps = {first: 0}, []
        states = [first]
        for state in states:  # grows during the loop
            steps.append([self._step(state, token_id) for token_id in (*alphabet, -1)])
            for step in steps[-1]:
                if step.state not in numbers:
                    numbers[step.state] = len(states)
                    states.append(step.state)
        return ThinkingAutomaton(
            alphabet,
            [[numbers[step.state] for step in row] for row in steps],
            [[step.tokens for step in row] for row in steps],
            [[step.begins for step in row] for row in steps],
            [max(0, state.opened) if self._thinks else 0 for state in states],
            [self._marking(state) for state in states],
        )

    def _marking(self, state: _State) -> int:
        if state is _DONE or state == _DONE or (state.opened >= 0 and not self._thinks):
            return -1
        if state.opened > 0:
            return self._marks.start_token_ids[state.opened]
        if state.ended > state.closed:
            return self._end.token_ids[state.ended]
        return self._closing.token_ids[state.closed]

    def _step(self, state: _State, token_id: int) -> _Step:
        if state == _DONE:
            return _Step(_DONE, 0)
        return self._think(state, token_id) if state.opened < 0 else self._open(state, token_id)

    def _think(self, state: _State, token_id: int, opened: int = -1) -> _Step:
        ended, closed = self._end.advance(state.ended, token_id), self._closing.advance(state.closed, token_id)
        return _Step(_DONE if ended == len(self._end.token_ids) else _State(opened, ended, closed), 1)

    def _open(self, state: _State, token_id: int) -> _Step:
        """The step at the beginning of an output, where a start mark may come."""
        start = self._marks.start_token_ids
        if token_id == start[state.opened]:
            opened = state.opened + 1
            if opened == len(start):
                return _Step(_State(-1, 0, 0), 0, begins=True)
            return _Step(state._replace(opened=opened), 0)
        if not state.opened and token_id in self._marks.blank_token_ids:
            return self._think(state, token_id, opened=0) if self._thinks else _Step(state, 0)
        if not self._thinks:
            return _Step(_DONE, 0)
        following, count = state._replace(opened=-1), 0
        for passed in (*start[: state.opened], token_id):
            following, more, _ = self._step(following, passed)
            count += more
        return _Step(following, count)
