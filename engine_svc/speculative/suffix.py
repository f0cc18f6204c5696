"""Guesses what followed the last tokens before: in the sequence, and in earlier answers of its tenant.

This is suffix decoding (Oliaro and others, 2024) by chains of occurrences in the place of trees: of the latest
occurrences of the last tokens those that agree the longest are followed, and at each position the token that most of
them have is guessed, as long as enough of them have it.
"""

from __future__ import annotations

from array import array
from collections import abc
from typing import TypeAlias

from engine_svc.requests.sequence import Sequence
from engine_svc.speculative.answers import BOUNDARY, Answers
from engine_svc.speculative.guesser import Guess, continued, kind_of
from engine_svc.speculative.token_index import TokenIndex
from quire.options.speculative import SpeculativeConfig

# Tokens that are taken in for all sequences, and of answers, in a step; a fifth of a microsecond each.
_STEP_TOKENS = 512
_OCCURRENCES = 8  # that are looked at in each text
_WIDTH = 2
# Matches of so many tokens or more say the same of what comes next, so all of them are counted.
_LONG = 6
# Of a prompt so many last tokens stand before its answer, so that an answer's beginning is found too.
_LEAD = 8
# Answers are cut there: what is so long is read by nobody in a step.
_LONGEST_ANSWER = 4096

_Match: TypeAlias = "tuple[abc.Sequence[int], int]"  # a text, and the position there that comes next


class _Text:
    """What is known of one sequence."""

    __slots__ = ("index", "length", "matches", "seen")

    def __init__(self, sequence: Sequence) -> None:
        embeds = sequence.owner.request.prompt_embeds
        self.index = TokenIndex(sequence.token_ids, _WIDTH, sequence.num_prompt_tokens if embeds else 0)
        self.seen = len(sequence.token_ids)
        self.matches: list[_Match] = []  # that the last tokens go on
        self.length = 0  # tokens that agree

    def follow(self) -> None:
        """Matches go on, or end, with the tokens that have come since."""
        tokens = self.index.tokens
        for index in range(self.seen, len(tokens)):
            if not self.matches:
                break
            token = tokens[index]
            self.matches = [(text, at + 1) for text, at in self.matches if at < len(text) and text[at] == token]
            self.length += 1
        self.seen = len(tokens)


class SuffixGuesser:
    """See the module."""

    def __init__(self, config: SpeculativeConfig) -> None:
        self._config = config
        self._answers = Answers(
            _WIDTH, config.suffix_decoding_max_cached_requests, config.suffix_decoding_max_cached_tokens
        )
        self._texts: dict[Sequence, _Text] = {}
        self._budget = _STEP_TOKENS

    def begin(self) -> None:
        """See Guesser."""
        self._budget = _STEP_TOKENS
        self._answers.take_in(_STEP_TOKENS)

    def guess(self, sequence: Sequence, most: int) -> Guess | None:
        """See Guesser."""
        text = self._texts.get(sequence)
        if text is None:
            text = self._texts[sequence] = _Text(sequence)
        self._budget -= text.index.take_in(self._budget)
        text.follow()
        if not text.matches:
            self._find(text, sequence.owner.request.cache_salt)
        if not text.matches:
            return None
        depth = self._config.suffix_decoding_max_tree_depth
        most = min(most, depth, max(1, int(text.length * self._config.suffix_decoding_max_spec_factor)))
        if len(text.matches) == 1:
            found, position = text.matches[0]
            token_ids, is_certain = _followed(found, position, most), True
        else:
            token_ids, is_certain = self._vote(text.matches, most)
        return Guess(token_ids, kind_of(text.length, is_certain)) if token_ids else None

    def forget(self, sequence: Sequence) -> None:
        """Its answer is one of the earlier ones from here on."""
        self._texts.pop(sequence, None)
        if not sequence.num_output_tokens:
            return
        first = sequence.num_prompt_tokens
        lead = 0 if sequence.owner.request.prompt_embeds else _LEAD
        answer = sequence.token_ids[max(0, first - lead) : first + _LONGEST_ANSWER]
        self._answers.add(sequence.owner.request.cache_salt, answer)

    def _find(self, text: _Text, tenant: str) -> None:
        """All of the latest occurrences whose matches are as long as the longest one, or long."""
        tokens, depth = text.index.tokens, self._config.suffix_decoding_max_tree_depth
        groups = [(text.index, 0), *((each.index, each.group(tenant)) for each in self._answers.generations)]
        found = [
            (index.common(position, tokens, depth), (index.tokens, position))
            for index, group in groups
            if group is not None
            for position in index.occurrences(tokens, _OCCURRENCES, group)
        ]
        if found:
            text.length = max(length for length, _ in found)
            text.matches = [match for length, match in found if length >= min(text.length, _LONG)]

    def _vote(self, matches: list[_Match], most: int) -> tuple[tuple[int, ...], bool]:
        """(guess, whether all agree on its first token)."""
        share, is_certain = 1.0, True
        guess: list[int] = []
        for _ in range(most):
            votes: dict[int, list[_Match]] = {}
            for text, position in matches:
                if position < len(text):
                    votes.setdefault(text[position], []).append((text, position + 1))
            if not votes:
                break
            token, agreeing = max(votes.items(), key=lambda vote: len(vote[1]))
            share *= len(agreeing) / len(matches)
            is_certain = is_certain and (bool(guess) or len(agreeing) == len(matches))
            if token == BOUNDARY or share < self._config.suffix_decoding_min_token_prob:
                break
            guess.append(token)
            matches = agreeing
        return tuple(guess), is_certain


def _followed(text: abc.Sequence[int], position: int, most: int) -> tuple[int, ...]:
    """What follows there, up to the end of its answer; a sequence's own text goes on as it did."""
    if not isinstance(text, array):
        return continued(text, position, most)
    found = tuple(text[position : position + most])
    return found[: found.index(BOUNDARY)] if BOUNDARY in found else found
