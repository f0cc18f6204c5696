"""The sampler: per-slot state that persists over steps, and one vectorized pass per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine_svc.native.library import Kernels
from engine_svc.parallel.vocabulary import VocabularyPart
from engine_svc.plan import OVERFLOW, PositionLogprobs, SamplingPlan, TokenMasks
from engine_svc.sampling.acceptance import TypicalAcceptance
from engine_svc.sampling.choosers import Chooser, TorchChooser
from engine_svc.sampling.kept_tokens import KeptTokens, has_few, kept_tokens
from engine_svc.sampling.logprobs import PROCESSED, Alternatives, ScoredPositions, Scoring, make_scoring
from engine_svc.sampling.native import NativeChooser
from engine_svc.sampling.rows import SampledRows
from engine_svc.sampling.slot import GREEDY, SlotState, make_state
from engine_svc.sampling.stages.base import SlotSequence
from engine_svc.sampling.stages.chain import StageChain
from engine_svc.sampling.stages.edits import LogitEdits
from engine_svc.sampling.truncation import processed_logits
from engine_svc.sampling.watermark import Watermark
from engine_svc.transfer import to_device, to_host
from quire.logits_processor import LogitsProcessor
from quire.sampling import SamplingParameters

# With more alternatives than this, gathering the ranks' logits is as fast as scoring them in parts.
_MOST_ALTERNATIVES = 1024
# Rows whose processed logits are computed at a time, because that takes several copies of their logits.
_MOST_PROCESSED = 64


@dataclass(frozen=True)
class BrokenRows:
    """Flags of rows where nothing can be sampled, being copied to the host."""

    slots: Sequence[int]
    broken: torch.Tensor  # bool [rows], on the host

    def read(self) -> dict[int, str]:
        """Slot → reason, for the broken rows. Call it once the step is done."""
        return {slot: OVERFLOW for slot, broken in zip(self.slots, self.broken.tolist(), strict=True) if broken}


@dataclass(frozen=True)
class SampleOutput:
    """One entry per row of logits. Tensors being copied to the host may be read once the step is done."""

    rows: SampledRows
    on_device: torch.Tensor  # int64 [rows]
    token_ids: torch.Tensor  # the same, on the host
    broken: BrokenRows
    scores: list[tuple[list[int], ScoredPositions]]  # (rows, their scores), for rows that want them
    kept: list[tuple[list[int], KeptTokens]] = field(default_factory=list)  # the same for what truncation has kept

    def sampling_masks(self) -> dict[int, list[int]]:
        """The tokens that truncation has kept by row, for rows that want them."""
        return {row: each for rows, kept in self.kept for row, each in zip(rows, kept.read(), strict=True)}

    def logprobs(self) -> dict[int, PositionLogprobs]:
        """Logprobs by row, for rows that want them."""
        return {
            row: position
            for rows, positions in self.scores
            for row, position in zip(rows, positions.read(), strict=True)
        }


class Sampler:
    """Samples a token for each row. The state of a slot is set by `add` and lasts until the next `add`."""

    def __init__(
        self,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device,
        logprobs_mode: str = "raw_logprobs",
        processors: Sequence[type[LogitsProcessor]] = (),
        kernels: Kernels | None = None,
        acceptance: TypicalAcceptance | None = None,
        returns_masks: bool = False,
        watermark: Watermark | None = None,
    ) -> None:
        """
        Args:
            logprobs_mode: see the option.
            processors: logits processors of the operator.
            kernels: C++ kernels for the rank's CPU; None means torch.
            acceptance: accepts likely drafts in place of the sampled tokens; None means that drafts must equal them.
            returns_masks: whether to tell which tokens truncation has kept.
            watermark: marks tokens; None if none are marked.
        """
        self._watermark = watermark
        self._acceptance, self._returns_masks = acceptance, returns_masks
        self._scoring = make_scoring(logprobs_mode)
        self._vocab_size = vocab_size
        self._device = device
        self._states = [GREEDY] * max_num_seqs
        self._chooser: Chooser = NativeChooser(max_num_seqs, kernels) if kernels else TorchChooser(max_num_seqs, device)
        self._stages = StageChain(max_num_seqs, vocab_size, device, processors)

    def add(
        self, slot: int, plan: SamplingPlan, token_ids: list[int], num_prompt_tokens: int, num_unknown_tokens: int = 0
    ) -> None:
        """Assigns a slot to a sequence.

        Args:
            token_ids: all known tokens, prompt first.
            num_unknown_tokens: see SlotSequence.

        Raises:
            ValueError, OverflowError: the plan is invalid. The slot then samples greedily until the next `add`.
        """
        self._states[slot] = GREEDY
        self._chooser.add(slot, GREEDY.parameters, 0)
        if self._watermark is not None:
            self._watermark.remove(slot)
        self._stages.add(slot, SlotSequence(plan, token_ids, num_prompt_tokens, num_unknown_tokens))
        self._states[slot] = make_state(plan, self._vocab_size)
        self._chooser.add(slot, plan.parameters, plan.seed)
        if self._watermark is not None:
            self._watermark.add(slot, plan, token_ids, num_prompt_tokens)

    def reserve(self, num_tokens: int) -> None:
        """Allocates all memory that it will need for sequences of `num_tokens` tokens."""
        self._stages.reserve(num_tokens)

    def is_sequential(self, slot: int) -> bool:
        """Whether a slot's rows must be sampled one at a time, because they depend on the sampled tokens."""
        return self._is_marked(slot) or self._stages.is_sequential(slot)

    def _is_marked(self, slot: int) -> bool:
        return self._watermark is not None and slot in self._watermark

    def sample(
        self, logits: torch.Tensor, rows: SampledRows, masks: TokenMasks | None = None,
        part: VocabularyPart | None = None,
    ) -> SampleOutput:  # fmt: skip
        """Samples a token for each row. If it raises, logits and slot state are unchanged.

        Args:
            logits: float32 [rows, vocabulary]; partly overwritten.
            rows: at most one row per sequential slot.
            masks: token masks of sequences that follow a grammar; may include other sequences.
            part: this rank's part of the vocabulary, if ranks share the logits: each rank calls this with its own.
        """
        edits = LogitEdits(logits, part)
        try:
            return self._sample(edits, rows, masks, part)
        except Exception:
            edits.undo()
            raise

    def takes_parts(self, rows: SampledRows) -> bool:
        """Whether `sample` supports shared logits for these rows, i.e. no parameter needs whole rows."""
        return (self._acceptance is None or not rows.drafts) and all(map(self._takes_part, set(rows.slots)))

    def _takes_part(self, slot: int) -> bool:
        state = self._states[slot]
        return (
            self._chooser.takes_parts(state.parameters)
            and self._stages.takes_parts(slot)
            and not self._is_marked(slot)
            and (state.parameters.logprobs is None or self._scores_parts(state.parameters, state.alternatives.count))
            and not self._wants_mask(state)
        )

    def _wants_mask(self, state: SlotState) -> bool:
        return self._returns_masks and has_few(state.parameters)

    def _scores_parts(self, parameters: SamplingParameters, count: int) -> bool:
        """Whether parts can be scored; not if scores depend on what top-k and top-p have kept."""
        return not (parameters.processed_logprobs or self._scoring.is_processed) and count <= _MOST_ALTERNATIVES

    def scores_prompt_parts(self, count: int) -> bool:
        """Whether `score_prompt` supports shared logits with this number of alternatives."""
        return not self._scoring.is_processed and count <= _MOST_ALTERNATIVES

    def _sample(
        self, edits: LogitEdits, rows: SampledRows, masks: TokenMasks | None, part: VocabularyPart | None
    ) -> SampleOutput:
        states = [self._states[slot] for slot in rows.slots]
        wanting = self._wanting(states)
        given = edits.logits
        raw = {scoring: given[self._index(some)] for scoring, some in wanting.items() if not scoring.is_processed}
        recorders = self._stages.apply(edits, rows, masks)
        logits = edits.logits
        token_ids, broken = self._choose(logits, rows, part)
        if self._watermark is not None:
            token_ids, recorder = self._watermark.choose(
                logits, token_ids, broken, rows, [state.parameters for state in states]
            )
            recorders += [recorder] if recorder else []
        if self._acceptance is not None and rows.drafts:
            token_ids = self._acceptance.accept(logits, token_ids, rows, [state.parameters for state in states])
        scores = [
            (some, self._score(scoring, raw.get(scoring), logits, token_ids, states, some, part))
            for scoring, rows_wanting in wanting.items()
            for some in _in_parts(rows_wanting, _MOST_PROCESSED if scoring.is_processed else len(rows_wanting))
        ]
        masked = [row for row, state in enumerate(states) if self._wants_mask(state)]
        kept = [(some, self._keep(logits, token_ids, states, some)) for some in _in_parts(masked, _MOST_PROCESSED)]
        for recorder in recorders:  # last, because it cannot be undone
            recorder.record(token_ids)
        return SampleOutput(rows, token_ids, to_host(token_ids), BrokenRows(rows.slots, to_host(broken)), scores, kept)

    def _keep(
        self, logits: torch.Tensor, token_ids: torch.Tensor, states: list[SlotState], rows: list[int]
    ) -> KeptTokens:
        index = self._index(rows)
        return kept_tokens(logits[index], [states[row].parameters for row in rows], token_ids[index])

    def _choose(
        self, logits: torch.Tensor, rows: SampledRows, part: VocabularyPart | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if part is None:
            return self._chooser.choose(logits, rows.slots, rows.num_tokens)
        return self._chooser.choose_part(logits, part, rows.slots, rows.num_tokens)

    def guess(self, logits: torch.Tensor, slots: list[int], num_tokens: list[int]) -> torch.Tensor:
        """Samples from a draft model's logits, with the noise that is used to sample at the same positions.

        The more similar the two models are, the more often the tokens are equal. Only temperature and truncation apply,
        no stages.

        Args:
            logits: float32 [rows, tokens]
            num_tokens: number of tokens before each position.

        Returns:
            int64 [rows], on the device.
        """
        token_ids, broken = self._chooser.choose(logits.contiguous(), slots, num_tokens)
        if self._watermark is None:
            return token_ids
        parameters = [self._states[slot].parameters for slot in slots]
        rows = SampledRows(slots, num_tokens)
        found, recorder = self._watermark.choose(logits, token_ids, broken, rows, parameters)
        if recorder is not None:  # what is sampled at these positions is recorded in their place
            recorder.record(found)
        return found

    def _wanting(self, states: list[SlotState]) -> dict[Scoring, list[int]]:
        """The rows whose tokens are to be scored, by scoring method."""
        found: dict[Scoring, list[int]] = {}
        for row, state in enumerate(states):
            if state.parameters.logprobs is not None:
                scoring = PROCESSED if state.parameters.processed_logprobs else self._scoring
                found.setdefault(scoring, []).append(row)
        return found

    def score_prompt(
        self, slot: int, logits: torch.Tensor, token_ids: torch.Tensor, num_tokens: list[int], count: int,
        part: VocabularyPart | None = None,
    ) -> ScoredPositions:  # fmt: skip
        """Scores tokens of a slot's prompt.

        Args:
            logits: float32 [rows, vocabulary]; overwritten.
            token_ids: int64 [rows], the prompt token at each position.
            num_tokens: number of tokens before each position.
            count: number of alternatives.
            part: see `sample`.
        """
        if self._scoring.is_processed:
            edits = LogitEdits(logits)
            self._stages.apply_to_prompt(edits, slot, num_tokens)
            logits = processed_logits(edits.logits, [self._states[slot].parameters] * len(logits))
        wanted = [Alternatives(count)] * len(logits)
        return self._chooser.score(logits, token_ids, wanted, self._scoring.is_normalised, part)

    def _score(
        self,
        scoring: Scoring,
        raw: torch.Tensor | None,
        logits: torch.Tensor,
        token_ids: torch.Tensor,
        states: list[SlotState],
        rows: list[int],
        part: VocabularyPart | None,
    ) -> ScoredPositions:
        """Scores the tokens sampled from some rows.

        Args:
            raw: the rows' logits from the model; None to use processed `logits`, which must be whole.
        """
        index, wanted = self._index(rows), [states[row] for row in rows]
        sampled = token_ids[index]
        if raw is None:
            raw = processed_logits(logits[index], [state.parameters for state in wanted], sampled)
        alternatives = [state.alternatives for state in wanted]
        return self._chooser.score(raw, sampled, alternatives, scoring.is_normalised, part)

    def _index(self, rows: list[int]) -> torch.Tensor:
        return to_device(rows, self._device)


def _in_parts(rows: list[int], most: int) -> list[list[int]]:
    return [rows[start : start + most] for start in range(0, len(rows), most)]
