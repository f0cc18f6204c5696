"""Beam search: the likeliest outputs as a whole, rather than the likeliest token at each position.

The search is that of the Transformers library, whose outputs it equals: of all ways to extend the running beams, the
likeliest go on, and those that end are kept by their score, the log-probability over a power of the length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gateway.protocol.common import GenerationFields
from gateway.requests.served_model import ServedModel
from quire.bounds import MAX_CHOICES, Bound
from quire.errors import InvalidRequest

# What ends outputs by their text, or asks for what a search does not do.
_NOT_WITH_BEAMS = ("stop", "prompt_logprobs", "logprob_token_ids", "repetition_detection")
_LENGTH_PENALTY = Bound(-10, 10)
EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True)
class BeamSearchParameters:
    """What a request asks of a search."""

    width: int  # outputs that are followed at a time
    ending: frozenset[int]  # tokens that end an output, and are a part of it
    length_penalty: float = 1.0  # scores are divided by length ** length_penalty: above 0, longer outputs are favoured
    # Whether the search ends with the first `width` outputs that end; "never": only when no better one can come.
    early_stopping: EarlyStopping = False

    @property
    def num_candidates(self) -> int:
        """How many of the likeliest next tokens of each beam have to be known: `width` of them do not end it."""
        return self.width + len(self.ending)


@dataclass(frozen=True)
class Likeliest:
    """The likeliest tokens at one position, falling."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Beam:
    """An output so far."""

    token_ids: tuple[int, ...] = ()
    logprob: float = 0.0  # the sum over its tokens
    chosen: tuple[tuple[Likeliest, int], ...] = ()  # for each token, what there was, and which of them it is
    is_complete: bool = False  # its grammar lets nothing follow

    def extended(self, position: Likeliest, choice: int) -> Beam:
        """With one more token."""
        return Beam(
            (*self.token_ids, position.token_ids[choice]),
            self.logprob + position.logprobs[choice],
            (*self.chosen, (position, choice)),
        )


class BeamSearch:
    """The search from one prompt. Ask for the likeliest next tokens of each of `running`, `advance`, until `done`."""

    def __init__(self, parameters: BeamSearchParameters, max_tokens: int) -> None:
        """
        Args:
            max_tokens: where outputs end that have not ended by themselves.
        """
        self._parameters = parameters
        self._max_tokens = max_tokens
        self.running: list[Beam] = [Beam()]
        self._finished: list[tuple[float, Beam]] = []  # score, falling, and output
        self.done = False

    @property
    def outputs(self) -> list[Beam]:
        """What ended, best first; `width` at most."""
        return [beam for _, beam in self._finished]

    def ends(self, beam: Beam) -> bool:
        """Whether a token has ended an output."""
        return beam.token_ids[-1] in self._parameters.ending

    def advance(self, positions: Sequence[Likeliest | None]) -> None:
        """Takes the likeliest next tokens of each running beam, in order; those that cannot be (-inf) do not count.

        Args:
            positions: None for a beam that nothing can follow: it is an output as it is.
        """
        for beam, position in zip(self.running, positions, strict=True):
            if position is None:
                self._finish(replace(beam, is_complete=True))
        width = self._parameters.width
        candidates = [
            (beam.logprob + logprob, beam, position, choice)
            for beam, position in zip(self.running, positions, strict=True)
            if position is not None
            for choice, logprob in enumerate(position.logprobs)
            if logprob > -math.inf
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        running: list[Beam] = []
        length = len(self.running[0].token_ids) + 1
        for rank, (_, beam, position, choice) in enumerate(candidates):
            if position.token_ids[choice] in self._parameters.ending or length >= self._max_tokens:
                if rank < width:
                    self._finish(beam.extended(position, choice))
            elif len(running) < width:
                running.append(beam.extended(position, choice))
        self.running = running
        self.done = not running or self._is_settled(length)

    def _finish(self, beam: Beam) -> None:
        score = beam.logprob / len(beam.token_ids) ** self._parameters.length_penalty
        self._finished.append((score, beam))
        self._finished.sort(key=lambda finished: -finished[0])
        del self._finished[self._parameters.width :]

    def _is_settled(self, length: int) -> bool:
        """Whether no running beam, as far as one looks, becomes better than the worst that has ended."""
        parameters = self._parameters
        if len(self._finished) < parameters.width:
            return False
        if parameters.early_stopping is True:
            return True
        if parameters.early_stopping == "never" and parameters.length_penalty > 0:
            length = self._max_tokens
        return self.running[0].logprob / float(length**parameters.length_penalty) <= self._finished[-1][0]


def beams_of(body: GenerationFields, model: ServedModel) -> BeamSearchParameters | None:
    """The search that a request asks for; None where it samples.

    Raises:
        InvalidRequest: a field is wrong, or is of no use beside a search.
    """
    if not body.use_beam_search:
        if body.best_of not in (None, body.n or 1):
            raise InvalidRequest(
                "best_of needs use_beam_search: true; to get more choices, raise n.", parameter="best_of"
            )
        return None
    width = body.num_sequences
    if body.best_of is not None:
        Bound(body.n or 1, MAX_CHOICES).check("best_of", body.best_of)
    for name in _NOT_WITH_BEAMS:
        if getattr(body, name):
            raise InvalidRequest(f"{name} cannot be used with use_beam_search; leave it out.", parameter=name)
    length_penalty = 1.0 if body.length_penalty is None else body.length_penalty
    _LENGTH_PENALTY.check("length_penalty", length_penalty)
    ends = frozenset((*(() if body.ignore_eos else model.eos_token_ids), *(body.stop_token_ids or ())))
    parameters = BeamSearchParameters(width, ends, length_penalty, body.early_stopping or False)
    if parameters.num_candidates > model.max_logprobs:
        raise InvalidRequest(
            f"A beam search of {width} outputs needs the {parameters.num_candidates} likeliest tokens of a position; "
            f"this server gives {model.max_logprobs}: ask for fewer, or raise --max-logprobs.",
            parameter="n",
        )
    return parameters
