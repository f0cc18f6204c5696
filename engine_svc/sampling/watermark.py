"""Samples tokens with the noise of a watermark; see quire/watermark.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from engine_svc.plan import SamplingPlan
from engine_svc.sampling.noise import row_keys
from engine_svc.sampling.rows import SampledRows
from engine_svc.sampling.stages.base import Recorder
from engine_svc.sampling.truncation import processed_logits
from engine_svc.transfer import to_device
from quire.errors import StartupError
from quire.options.engine import EngineOptions
from quire.options.watermark import WatermarkConfig
from quire.sampling import SamplingParameters
from quire.watermark import NO_TOKEN, noise_words, uniform

# Rows that are marked at a time, because noise takes many copies of their logits, and the search for their contexts
# many numbers for each token.
_MOST_ROWS = 16


class _Marked(NamedTuple):
    """Rows of slots that are marked: tensors of the same length, on the device."""

    rows: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor  # of the tokens that are sampled
    prompts: torch.Tensor  # numbers of tokens of the sequences' prompts


@dataclass(frozen=True)
class _Recorder:
    """See Recorder."""

    tokens: torch.Tensor
    marked: _Marked

    def record(self, token_ids: torch.Tensor) -> None:
        """See Recorder.record."""
        at = self.marked.slots, self.marked.positions % self.tokens.shape[1]
        self.tokens[at] = token_ids[self.marked.rows].to(self.tokens.dtype)


def make_watermark(options: EngineOptions, max_model_len: int, device: torch.device) -> Watermark | None:
    """Creates the watermark of --watermark-config; None if there is none.

    Raises:
        StartupError: speculation would replace marked tokens.
    """
    config = options.watermark.watermark()
    if config is None:
        return None
    speculation = options.speculative.chosen()
    if speculation is not None and speculation.typical_acceptance is not None:
        raise StartupError(
            "--watermark-config cannot be combined with acceptance_method typical_acceptance_sampler of "
            "--speculative-config, which accepts drafted tokens without a mark. Use rejection_sampler, with which "
            "drafts change no token."
        )
    most, ahead = options.scheduler.most_sequences, options.speculative.most_query_len - 1
    return Watermark(config, most, max_model_len + 1, device, ahead)


class Watermark:
    """Marks the tokens of all sequences that sample and do not opt out.

    A slot's rows must be sampled one at a time, since the last tokens, which the noise follows from, may be known on
    the device only.
    """

    def __init__(
        self, config: WatermarkConfig, max_num_seqs: int, most_tokens: int, device: torch.device, ahead: int = 0
    ) -> None:
        """
        Args:
            most_tokens: of a sequence.
            ahead: how many of a sequence's next tokens are guessed before they are sampled.
        """
        self._config, self._device, self._width = config, device, config.context_width
        self._keys = config.keys()
        span = config.deduplicate_contexts_max_history
        self._span = most_tokens if span is None else min(span, most_tokens)  # positions searched for a context
        # The last tokens of each slot's sequence, each at the remainder of its position.
        size = self._width + ahead + (0 if config.deduplicate_contexts == "none" else self._span)
        self._tokens = torch.zeros((max_num_seqs, size), dtype=torch.int32, device=device)
        self._prompts: dict[int, int] = {}  # slot → tokens of its prompt, of those that are marked
        self._seeds: dict[int, int] = {}

    def __contains__(self, slot: int) -> bool:
        return slot in self._prompts

    def remove(self, slot: int) -> None:
        """Marks the slot's tokens no longer."""
        self._prompts.pop(slot, None)

    def add(self, slot: int, plan: SamplingPlan, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Assigns a slot to a sequence.

        Args:
            token_ids: all known tokens, prompt first.
        """
        if plan.parameters.is_greedy or plan.parameters.watermarking is False:
            self.remove(slot)
            return
        size = self._tokens.shape[1]
        first = max(0, len(token_ids) - size)
        places = to_device(np.arange(first, len(token_ids)) % size, self._device)
        self._tokens[slot, places] = to_device(np.array(token_ids[first:], np.int32), self._device)
        self._prompts[slot], self._seeds[slot] = num_prompt_tokens, plan.seed

    def choose(
        self, logits: torch.Tensor, token_ids: torch.Tensor, broken: torch.Tensor, rows: SampledRows,
        parameters: Sequence[SamplingParameters],
    ) -> tuple[torch.Tensor, Recorder | None]:  # fmt: skip
        """Returns the sampled tokens, replaced by marked ones in rows of marked slots, and what records them.

        Args:
            logits: float32 [rows, vocabulary], after all stages.
            token_ids: int64 [rows], sampled without a mark.
            broken: bool [rows], where nothing can be sampled.
            rows: at most one row per marked slot.
            parameters: one per row.
        """
        chosen = [row for row, slot in enumerate(rows.slots) if slot in self]
        if not chosen:
            return token_ids, None
        marked, found = self._marked(rows, chosen), token_ids.clone()
        for start in range(0, len(chosen), _MOST_ROWS):
            part = slice(start, start + _MOST_ROWS)
            own, at = _Marked(*(each[part] for each in marked)), chosen[part]
            contexts = self._tokens_at(own, _before(own.positions, self._width), own.prompts)
            drawn = self._draw(
                processed_logits(logits[own.rows], [parameters[row] for row in at]), contexts,
                [rows.slots[row] for row in at], [rows.num_tokens[row] for row in at],
            )  # fmt: skip
            kept = broken[own.rows] | self._repeat(own, contexts, self._searched(rows, at))
            found[own.rows] = torch.where(kept, token_ids[own.rows], drawn)
        return found, _Recorder(self._tokens, marked)

    def _marked(self, rows: SampledRows, chosen: list[int]) -> _Marked:
        slots, positions = [rows.slots[row] for row in chosen], [rows.num_tokens[row] for row in chosen]
        prompts = [self._prompts[slot] for slot in slots]
        return _Marked(*(to_device(each, self._device) for each in (chosen, slots, positions, prompts)))

    def _tokens_at(self, marked: _Marked, places: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """The tokens at places [rows, places], NO_TOKEN before `first` [rows]: int64."""
        tokens = self._tokens[marked.slots[:, None], places % self._tokens.shape[1]].long()
        return tokens.masked_fill_(places < first[:, None], NO_TOKEN)

    def _searched(self, rows: SampledRows, chosen: Sequence[int]) -> int:
        """The most positions that any row's context is looked for at."""
        match self._config.deduplicate_contexts:
            case "none":
                return 0
            case "single_turn":
                known = max(rows.num_tokens[row] - self._prompts[rows.slots[row]] for row in chosen)
            case _:
                known = max(rows.num_tokens[row] for row in chosen)
        return min(known, self._span)

    def _repeat(self, marked: _Marked, contexts: torch.Tensor, count: int) -> torch.Tensor:
        """Whether each row's context was marked before, or may have been: bool [rows].

        Args:
            count: of the positions that it is looked for at.
        """
        scope = self._config.deduplicate_contexts
        if not count:
            return torch.full_like(marked.slots, scope == "all", dtype=torch.bool)
        first = marked.prompts if scope == "single_turn" else torch.zeros_like(marked.prompts)
        tokens = self._tokens_at(marked, _before(marked.positions, self._width), first)
        earlier = _before(marked.positions, count)
        same = earlier >= first[:, None]
        for back in range(1, self._width + 1):
            same &= self._tokens_at(marked, earlier - back, first) == tokens[:, -back, None]
        repeats = same.any(-1)
        if scope == "all":
            repeats |= (contexts == NO_TOKEN).any(-1)
        return repeats

    def _draw(
        self, logits: torch.Tensor, contexts: torch.Tensor, slots: Sequence[int], positions: Sequence[int]
    ) -> torch.Tensor:
        """The tokens with the greatest sum of logit and noise: int64 [rows].

        Args:
            logits: float32 [rows, vocabulary], as tokens are sampled from.
        """
        drawn = [self._greatest(logits, contexts, key) for key in self._keys]
        if len(drawn) == 1:
            return drawn[0]
        # The second key has its turn by chance, which choices of a request do not share.
        seeds = np.array([self._seeds[slot] for slot in slots], np.uint64)
        words = row_keys(seeds, np.array(positions, np.uint64))[:, 0]
        takes_second = to_device(words < self._config.alpha * 2**32, self._device)
        return torch.where(takes_second, drawn[1], drawn[0])

    def _greatest(self, logits: torch.Tensor, contexts: torch.Tensor, key: int) -> torch.Tensor:
        size = logits.shape[1]
        quads = torch.arange(-(-size // 4), device=self._device)[None]
        columns = [contexts[:, index, None] for index in range(self._width)]
        words = torch.stack(noise_words(key, columns, quads), dim=-1).flatten(1)[:, :size]
        return (logits - torch.log(-torch.log(uniform((words >> 8).double())))).argmax(-1)


def _before(positions: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` positions before each of some, the last one at the end: int64 [rows, count]."""
    return positions[:, None] - torch.arange(count, 0, -1, device=positions.device)
