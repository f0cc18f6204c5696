"""Beam search: finds the most likely outputs as a whole, rather than the most likely token at each position.

The search is that of the Transformers library, and produces the same outputs: of all extensions of the running beams,
the most likely continue, and finished ones are kept by score, which is the log-probability divided by a power of the
length.
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

# Fields that end outputs by their text, or that a beam search does not support.
_NOT_WITH_BEAMS = (
    "stop", "prompt_logprobs", "logprob_token_ids", "repetition_detection", "return_weight_versions", "watermarking",
)  # fmt: skip
_LENGTH_PENALTY = Bound(-10, 10)
EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True)
class BeamSearchParameters:
    """Parameters of a beam search."""

    width: int  # number of beams
    ending: frozenset[int]  # tokens that end an output; they are part of it
    length_penalty: float = 1.0  # scores are divided by length ** length_penalty: above 0 favors longer outputs
    # True ends the search once `width` outputs have finished; "never" ends it only when no better one is possible.
    early_stopping: EarlyStopping = False

    @property
    def num_candidates(self) -> int:
        """Number of most likely next tokens needed per beam, so that at least `width` of them do not end it."""
        return self.width + len(self.ending)


@dataclass(frozen=True)
class Likeliest:
    """The most likely tokens at one position, in descending order."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Beam:
    """A partial or complete output."""

    token_ids: tuple[int, ...] = ()
    logprob: float = 0.0  # the sum over its tokens
    chosen: tuple[tuple[Likeliest, int], ...] = ()  # per token: the candidates, and the index chosen
    is_complete: bool = False  # its grammar allows nothing more

    def extended(self, position: Likeliest, choice: int) -> Beam:
        """Returns the beam with one more token."""
        return Beam(
            (*self.token_ids, position.token_ids[choice]),
            self.logprob + position.logprobs[choice],
            (*self.chosen, (position, choice)),
        )


class BeamSearch:
    """The search from one prompt: until `done`, `advance` it by the most likely next tokens of each of `running`."""

    def __init__(self, parameters: BeamSearchParameters, max_tokens: int) -> None:
        """
        Args:
            max_tokens: length at which unfinished outputs end.
        """
        self._parameters = parameters
        self._max_tokens = max_tokens
        self.running: list[Beam] = [Beam()]
        self._finished: list[tuple[float, Beam]] = []  # score and output, best first
        self.done = False

    @property
    def outputs(self) -> list[Beam]:
        """Finished outputs, best first; at most `width`."""
        return [beam for _, beam in self._finished]

    def ends(self, beam: Beam) -> bool:
        """Whether the output's last token is an ending token."""
        return beam.token_ids[-1] in self._parameters.ending

    def advance(self, positions: Sequence[Likeliest | None]) -> None:
        """Advances the search by the most likely next tokens of each running beam, in order; -inf means impossible.

        Args:
            positions: None for a beam that nothing can follow: it is complete without another token.
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
        """Whether no running beam, as estimated from the best one, can become better than the worst finished output."""
        parameters = self._parameters
        if len(self._finished) < parameters.width:
            return False
        if parameters.early_stopping is True:
            return True
        if parameters.early_stopping == "never" and parameters.length_penalty > 0:
            length = self._max_tokens
        return self.running[0].logprob / float(length**parameters.length_penalty) <= self._finished[-1][0]


def beams_of(body: GenerationFields, model: ServedModel) -> BeamSearchParameters | None:
    """Returns the beam search that a request asks for; None if it samples.

    Raises:
        InvalidRequest: a field is invalid, or cannot be combined with beam search.
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
            f"A beam search with {width} outputs needs the {parameters.num_candidates} most likely tokens of each "
            f"position; this server returns at most {model.max_logprobs}: ask for fewer outputs, or raise "
            "--max-logprobs.",
            parameter="n",
        )
    return parameters
