"""Drafts what followed earlier occurrences of the last tokens, in the sequence and in earlier answers of its tenant.

This is suffix decoding (Oliaro and others, 2024) with chains of occurrences instead of trees: among the latest
occurrences of the last tokens, the longest matches are followed, and at each position the most frequent token is
drafted, as long as enough of the matches have it.
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

# Tokens indexed in a step, for all sequences and again for answers; a fifth of a microsecond each.
_STEP_TOKENS = 512
_OCCURRENCES = 8  # occurrences examined in each text
_WIDTH = 2
# Matches of at least this many tokens predict the next token equally well, so all of them vote.
_LONG = 6
# Last prompt tokens that are kept before an answer, so that the beginning of an answer is found too.
_LEAD = 8
# Answers are cut at this length, which bounds the time for indexing one in a step.
_LONGEST_ANSWER = 4096

_Match: TypeAlias = "tuple[abc.Sequence[int], int]"  # a text, and the position of the next token in it


class _Text:
    """Index and current matches of one sequence."""

    __slots__ = ("index", "length", "matches", "seen")

    def __init__(self, sequence: Sequence) -> None:
        embeds = sequence.owner.request.prompt_embeds
        self.index = TokenIndex(sequence.token_ids, _WIDTH, sequence.num_prompt_tokens if embeds else 0)
        self.seen = len(sequence.token_ids)
        self.matches: list[_Match] = []  # matches of the last tokens
        self.length = 0  # number of matching tokens

    def follow(self) -> None:
        """Extends or ends the matches with the tokens that have arrived since."""
        tokens = self.index.tokens
        for index in range(self.seen, len(tokens)):
            if not self.matches:
                break
            token = tokens[index]
            self.matches = [(text, at + 1) for text, at in self.matches if at < len(text) and text[at] == token]
            self.length += 1
        self.seen = len(tokens)


class SuffixGuesser:
    """Suffix decoding; see the module's docstring."""

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
        """Drops a sequence that has ended, and adds its answer to the earlier ones."""
        self._texts.pop(sequence, None)
        if not sequence.num_output_tokens:
            return
        first = sequence.num_prompt_tokens
        lead = 0 if sequence.owner.request.prompt_embeds else _LEAD
        answer = sequence.token_ids[max(0, first - lead) : first + _LONGEST_ANSWER]
        self._answers.add(sequence.owner.request.cache_salt, answer)

    def _find(self, text: _Text, tenant: str) -> None:
        """Finds the latest occurrences whose matches are as long as the longest one, or at least `_LONG` tokens."""
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
        """Returns the guess, and whether all matches agree on its first token."""
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
    """The tokens from the position to the end of its answer; a sequence's own text is continued periodically."""
    if not isinstance(text, array):
        return continued(text, position, most)
    found = tuple(text[position : position + most])
    return found[: found.index(BOUNDARY)] if BOUNDARY in found else found
