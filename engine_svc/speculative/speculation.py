"""Speculative decoding of one engine: for which sequences to draft, by which method, how much, and the outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from engine_svc.requests.sequence import LiveRequest, Sequence
from engine_svc.scheduler.batch import Batch
from engine_svc.scheduler.drafter import Drafter
from engine_svc.speculative.acceptance import Acceptance, Rate, sequence_rate
from engine_svc.speculative.controller import Controller, Offer
from engine_svc.speculative.guesser import MODEL_KIND, Guess, Guesser
from engine_svc.speculative.statistics import SpeculationStatistics
from engine_svc.speculative.step_costs import StepCosts
from quire.options.speculative import SpeculativeConfig

logger = logging.getLogger(__name__)

_NO_TOKENS: tuple[int, ...] = ()
_REPORT_SECONDS = 60.0
_MOST_STARTS = 2  # per sequence of the last decode step
# Consecutive steps without drafts to measure their cost: in the first one, the caches still hold other weights.
_PLAIN, _PLAIN_OVERLAPPING = 3, 4


class _Speculated:
    """State of a sequence for which tokens may be drafted."""

    __slots__ = ("brought", "guess", "most", "rate", "seen")

    def __init__(self, most: int) -> None:
        self.most = most  # most tokens per step
        self.rate: Rate = sequence_rate()
        self.guess: Guess | None = None  # guess for what follows the first `seen` tokens
        self.seen = 0
        self.brought = _NO_TOKENS  # drafted by the ranks after the first `seen` tokens


class Speculation(Drafter):
    """Drafts tokens by a Guesser, or passes on those drafted by the ranks; a Controller decides how many.

    A guess is compared with the actual tokens even if it was not verified, so that the quality of lookup methods is
    known without drafting. An exception in guessing ends speculation, and nothing else.
    """

    def __init__(
        self,
        config: SpeculativeConfig,
        guesser: Guesser | None,
        clock: Callable[[], float],
        overlaps: bool = False,
    ) -> None:
        """
        Args:
            guesser: None means that the ranks draft.
            clock: returns seconds.
            overlaps: whether steps without drafts are planned before the last one has ended.
        """
        self._config = config
        self._guesser = guesser
        self._clock = clock
        self._costs = StepCosts()
        # If the ranks draft, the first step with drafts makes the draft model catch up.
        self._controller = Controller(self._costs, _PLAIN_OVERLAPPING if overlaps else _PLAIN, 1 if guesser else 6)
        self._acceptance = Acceptance()
        self._sequences: dict[Sequence, _Speculated] = {}
        self._chosen: dict[Sequence, int] = {}  # for the step being planned: number of tokens to draft, if any
        self._usual = config.most_tokens  # tokens to draft for sequences that start, as in the last decode step
        self._usual_starts = _MOST_STARTS  # bounds starts: what suits a few sequences may not suit many
        self._starts = 0  # sequences that start in the step being planned
        self._last_end = clock()
        self._was_plain = False  # the last ended step verified no drafts and requested none
        self._reported = self._last_end
        self.statistics = SpeculationStatistics()

    @property
    def is_active(self) -> bool:
        """See Drafter."""
        return bool(self._chosen)

    def enter(self, live: LiveRequest, num_waiting: int) -> None:
        """See Drafter."""
        config, sampling = self._config, live.request.sampling
        most = config.most_tokens
        if sampling.num_speculative_tokens is not None:
            most = min(most, sampling.num_speculative_tokens)
        if sampling.logprobs is not None and config.disable_logprobs:
            most = 0
        if config.disable_by_batch_size is not None and num_waiting > config.disable_by_batch_size:
            most = 0
        if most and not self.statistics.failures:
            for sequence in live.sequences:
                self._sequences[sequence] = _Speculated(most)

    def begin(self, sequences: list[Sequence]) -> None:
        """See Drafter."""
        self._chosen.clear()
        self._starts = 0
        if not self._sequences:
            return
        decoding = [sequence for sequence in sequences if sequence.num_uncomputed_tokens == 1]
        if decoding and self._controller.is_asleep(len(decoding)):
            self._usual = 0
        elif decoding:
            self._guarded(partial(self._decide, decoding))

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            logger.error("drafting tokens failed", exc_info=error)
            self.fail(f"{type(error).__name__}: {error}")

    def _decide(self, decoding: list[Sequence]) -> None:
        if self._guesser is not None:
            self._guesser.begin()
        offered, offers = [], []
        for sequence in decoding:
            speculated = self._sequences.get(sequence)
            most = self._most(sequence, speculated) if speculated else 0
            if speculated and most > 0 and (offer := self._offer(sequence, speculated, most)):
                offered.append(sequence)
                offers.append(offer)
        lengths = self._controller.lengths(len(decoding), offers)
        self._chosen.update((sequence, length) for sequence, length in zip(offered, lengths, strict=True) if length)
        self._usual, self._usual_starts = max(lengths, default=0), _MOST_STARTS * len(decoding)

    def _most(self, sequence: Sequence, speculated: _Speculated) -> int:
        """Most tokens that may be drafted for the sequence in a step."""
        most = min(speculated.most, sequence.num_missing_tokens - 1)
        if self._config.max_model_len is not None:
            most = min(most, self._config.max_model_len - len(sequence.token_ids))
        return most

    def _offer(self, sequence: Sequence, speculated: _Speculated, most: int) -> Offer | None:
        if self._guesser is None:
            return Offer(*self._acceptance.rates(MODEL_KIND, speculated.rate), most)
        self._compare(sequence, speculated)
        guess = speculated.guess = self._guesser.guess(sequence, most)
        speculated.seen = len(sequence.token_ids)
        if guess is None:
            return None
        return Offer(*self._acceptance.rates(guess.kind, speculated.rate), len(guess.token_ids))

    def _compare(self, sequence: Sequence, speculated: _Speculated) -> None:
        """Compares an earlier guess that was not verified with the actual tokens."""
        guess, seen = speculated.guess, speculated.seen
        if guess is not None and len(sequence.token_ids) > seen:
            is_right = guess.token_ids[0] == sequence.token_ids[seen]
            self._acceptance.note(guess.kind, speculated.rate, 1, int(is_right))

    def waits_for(self, sequence: Sequence) -> bool:
        """See Drafter."""
        return sequence in self._chosen

    def propose(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        """See Drafter."""
        speculated = self._sequences.get(sequence)
        if speculated is None or speculated.seen != len(sequence.token_ids):
            return _NO_TOKENS
        if self._guesser is None:
            return speculated.brought[:most]
        length = self._chosen.get(sequence, 0)
        return speculated.guess.token_ids[: min(most, length)] if length and speculated.guess else _NO_TOKENS

    def wanted(self, sequence: Sequence, most: int) -> int:
        """See Drafter."""
        if self._guesser is not None or sequence not in self._sequences:
            return 0
        length = self._chosen.get(sequence, 0) if sequence.num_output_tokens else self._at_the_start()
        return max(0, min(length, most, self._most(sequence, self._sequences[sequence])))

    def _at_the_start(self) -> int:
        self._starts += 1
        return self._usual if self._starts <= self._usual_starts else 0

    def take(self, sequence: Sequence, token_ids: list[int]) -> None:
        """See Drafter."""
        if speculated := self._sequences.get(sequence):
            speculated.brought, speculated.seen = tuple(token_ids), len(sequence.token_ids)

    def verified(self, sequence: Sequence, num_drafts: int, num_right: int, num_tokens: int) -> None:
        """See Drafter."""
        self.statistics.note(num_drafts, num_right, num_tokens)
        if speculated := self._sequences.get(sequence):
            kind = speculated.guess.kind if speculated.guess else MODEL_KIND
            self._acceptance.note(kind, speculated.rate, num_drafts, num_right)
            speculated.guess = None

    def ended(self, batch: Batch, draft_seconds: float) -> None:
        """See Drafter."""
        now, num_sequences = self._clock(), len(batch.sampling)
        seconds = now - max(self._last_end, batch.began)
        is_plain = not batch.num_drafts and not batch.num_wanted
        is_whole = batch.num_drafts > 0 and (self._guesser is not None or batch.num_wanted > 0)  # verifies and drafts
        is_noted = False
        if num_sequences and (is_whole or (is_plain and self._was_plain)):  # not mixed with the other kind
            prompts = batch.num_tokens - num_sequences - batch.num_drafts
            is_noted = self._costs.note(num_sequences, batch.num_drafts, seconds, prompts)
        if draft_seconds and not is_noted:
            self._costs.owe(num_sequences, draft_seconds)
        self._last_end, self._was_plain = now, is_plain
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            if line := self.statistics.news():
                logger.info(line)

    def forget(self, sequence: Sequence) -> None:
        """See Drafter."""
        self._chosen.pop(sequence, None)
        if self._sequences.pop(sequence, None) is not None and self._guesser is not None:
            self._guarded(partial(self._guesser.forget, sequence))

    def counters(self) -> dict[str, Any]:
        """See Drafter."""
        return self.statistics.counters()

    def fail(self, reason: str) -> None:
        """See Drafter."""
        logger.error("this worker continues without speculation, because drafting failed: %s", reason)
        self.statistics.failures += 1
        self._sequences.clear()
        self._chosen.clear()
        self._usual = 0
