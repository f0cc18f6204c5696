"""Sequences to draft for, and a guesser that is right as often as a test wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine_svc.requests.admission import make_sequences
from engine_svc.requests.request import GenerationRequest
from engine_svc.requests.sequence import LiveRequest, Sequence
from engine_svc.speculative.guesser import Guess
from quire.sampling import SamplingParameters
from tests.support.fake_executor import expected_tokens

MAX_LENGTH = 10_000


def live_request(prompt: list[int], cache_salt: str = "", key: int = 0, **sampling: Any) -> LiveRequest:
    """A live request whose sequences have not been scheduled."""
    request = GenerationRequest("r", prompt, SamplingParameters(temperature=0.0, **sampling), cache_salt=cache_salt)
    live = LiveRequest(key, request, frozenset(), 0.0)
    live.sequences = make_sequences(live, (0, 0), MAX_LENGTH, seed=0)
    return live


def sequence(prompt: list[int], output: list[int] | None = None, **request: Any) -> Sequence:
    """A sequence that decodes: all of its tokens but the last are computed."""
    (made,) = live_request(prompt, **request).sequences
    made.advance(len(prompt), 1)
    for token_id in output or []:
        go_on(made, [token_id])
    return made


def go_on(made: Sequence, run: list[int]) -> None:
    """Appends tokens to a sequence; all but the last of them count as computed."""
    made.advance(len(run) - made.num_pending_tokens, len(run) - made.num_pending_tokens)
    made.append(run, len(run))
    made.advance(1, 1)


class FakeGuesser:
    """Drafts `num_right(sequence)` tokens of the fake model, then wrong ones."""

    def __init__(self, vocab_size: int, num_right: Callable[[Sequence], int]) -> None:
        self.num_right = num_right
        self.asked = 0
        self.forgotten = 0
        self._vocab_size = vocab_size

    def begin(self) -> None:
        pass

    def guess(self, sequence: Sequence, most: int) -> Guess | None:
        self.asked += 1
        right = self.num_right(sequence)
        tokens = expected_tokens(sequence.token_ids, most, self._vocab_size, sequence.sampling)
        wrong = ((token + (index >= right)) % self._vocab_size for index, token in enumerate(tokens))
        return Guess(tuple(wrong), 0)

    def forget(self, sequence: Sequence) -> None:
        self.forgotten += 1
