"""Reasoning marks as an automaton, so that the device can follow them without the host: see quire/reasoning.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from quire.reasoning import ReasoningMarks


class _State(NamedTuple):
    """State of an output. Both fields are -1 if its reasoning has ended or it has none."""

    opened: int  # matched tokens of a start mark; -1 once it cannot come any more
    ended: int  # matched tokens of an end mark


_DONE = _State(-1, -1)


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
    # [states], the next token of a start mark that has begun, else of the end mark; -1 outside of reasoning.
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


class _Builder:
    def __init__(self, marks: ReasoningMarks) -> None:
        self._marks = marks
        self._thinks = marks.is_open or not marks.is_optional
        end = marks.end_token_ids
        # Failure function of Knuth, Morris and Pratt: for each length of a prefix of the end mark, the longest shorter
        # prefix that is also its suffix.
        self._shorter = [0] * len(end)
        for count in range(2, len(end)):
            self._shorter[count] = self._advance_end(self._shorter[count - 1], end[count - 1])

    def build(self) -> ThinkingAutomaton:
        marks = self._marks
        alphabet = list(dict.fromkeys((*marks.start_token_ids, *marks.end_token_ids, *marks.blank_token_ids)))
        first = _State(0, 0) if marks.start_token_ids else _State(-1, 0) if self._thinks else _DONE
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
        return self._marks.start_token_ids[state.opened] if state.opened > 0 else self._marks.end_token_ids[state.ended]

    def _step(self, state: _State, token_id: int) -> _Step:
        if state == _DONE:
            return _Step(_DONE, 0)
        return self._think(state.ended, token_id) if state.opened < 0 else self._open(state, token_id)

    def _think(self, ended: int, token_id: int) -> _Step:
        ended = self._advance_end(ended, token_id)
        return _Step(_DONE if ended == len(self._marks.end_token_ids) else _State(-1, ended), 1)

    def _open(self, state: _State, token_id: int) -> _Step:
        """The step at the beginning of an output, where a start mark may come."""
        start = self._marks.start_token_ids
        if token_id == start[state.opened]:
            opened = state.opened + 1
            if opened == len(start):
                return _Step(_State(-1, 0), 0, begins=True)
            return _Step(_State(opened, state.ended), 0)
        if not state.opened and token_id in self._marks.blank_token_ids:
            return _Step(_State(0, self._advance_end(state.ended, token_id)), 1) if self._thinks else _Step(state, 0)
        if not self._thinks:
            return _Step(_DONE, 0)
        following, count = _State(-1, state.ended), 0
        for passed in (*start[: state.opened], token_id):
            following, more, _ = self._step(following, passed)
            count += more
        return _Step(following, count)

    def _advance_end(self, ended: int, token_id: int) -> int:
        end = self._marks.end_token_ids
        while ended and token_id != end[ended]:
            ended = self._shorter[ended]
        return ended + (token_id == end[ended])
