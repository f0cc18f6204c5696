"""Samples tokens from logits, and scores them: with torch operators here, or with the C++ kernels in `native.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from engine_svc.parallel.vocabulary import VocabularyPart
from engine_svc.sampling.logprobs import Alternatives, ScoredPositions, Survey, own_and_named
from engine_svc.sampling.noise import row_keys
from engine_svc.sampling.truncation import DrawMethod, draw_method, draw_rows
from engine_svc.transfer import to_device
from quire.sampling import SamplingParameters

_GREEDY = SamplingParameters(temperature=0.0)


class Chooser(ABC):
    """Samples by each slot's parameters. A row's token only depends on its own logits and parameters."""

    @abstractmethod
    def add(self, slot: int, parameters: SamplingParameters, seed: int) -> None:
        """Assigns a slot to a sequence.

        Args:
            seed: 64-bit seed of its noise.
        """

    @abstractmethod
    def choose(
        self, logits: torch.Tensor, slots: Sequence[int], num_tokens: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples a token for each row.

        Args:
            logits: float32 [rows, vocabulary], rows contiguous.
            num_tokens: known tokens of each row's sequence, which is the position of its noise.

        Returns:
            Token ids, int64 [rows], and bool [rows]: whether nothing can be sampled in a row, whose token is then 0.
        """

    @abstractmethod
    def takes_parts(self, parameters: SamplingParameters) -> bool:
        """Whether `choose_part` supports a sequence's parameters."""

    @abstractmethod
    def choose_part(
        self, logits: torch.Tensor, part: VocabularyPart, slots: Sequence[int], num_tokens: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Like `choose`, for logits [rows, tokens of this rank] that ranks share.

        The result is the same on all ranks, and the same as that of one rank with all logits.
        """

    @abstractmethod
    def survey(self, logits: torch.Tensor, own: torch.Tensor, most: int, sums: bool) -> Survey:
        """Computes what scores are based on.

        Args:
            logits: float32 [rows, tokens]
            own: float32 [rows], the logit of each row's token, which may be on another rank.
            most: number of alternatives, at most the number of tokens.
            sums: whether totals are log-sum-exps rather than maxima.
        """

    def score(
        self, logits: torch.Tensor, token_ids: torch.Tensor, wanted: Sequence[Alternatives], is_normalised: bool,
        part: VocabularyPart | None = None,
    ) -> ScoredPositions:  # fmt: skip
        """Scores the token at each position and its alternatives. Rows without a valid distribution get zeros.

        Args:
            logits: float32 [rows, vocabulary], or only this rank's tokens.
            token_ids: int64 [rows], the token at each position.
            wanted: one per row.
            is_normalised: see Scoring.
            part: this rank's part of the vocabulary, if ranks share the logits. Each rank calls this.

        Raises:
            ValueError: more alternatives are wanted than there are tokens.
        """
        size, most = part.size if part else logits.shape[-1], max(each.count for each in wanted)
        if most > size:
            raise ValueError(f"{most} alternatives in a vocabulary of {size}")
        own, named = own_and_named(logits, token_ids, wanted, part)
        found = self.survey(logits, own, min(most, logits.shape[-1]), is_normalised)
        if part is not None:
            found = found.of_all(part, most, is_normalised)
        return found.scored(token_ids, own, named, wanted, is_normalised)


def _greatest_tokens(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The token of each row with the greatest logit, and whether that is not finite; the token is then 0."""
    if logits.is_cuda:
        # Triton is imported only where it is used.
        from engine_svc.kernels.greatest import greatest_tokens

        return greatest_tokens(logits)
    best = logits.max(dim=-1)
    broken = ~torch.isfinite(best.values)
    return best.indices.masked_fill_(broken, 0), broken


class TorchChooser(Chooser):
    """Samples with torch operators, or on a GPU with Triton kernels."""

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self._device = device
        self._parameters = [_GREEDY] * max_num_seqs
        self._seeds = np.zeros(max_num_seqs, np.uint64)

    def add(self, slot: int, parameters: SamplingParameters, seed: int) -> None:
        """See Chooser.add."""
        self._parameters[slot], self._seeds[slot] = parameters, seed

    def choose(
        self, logits: torch.Tensor, slots: Sequence[int], num_tokens: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Chooser.choose. Rows of the same method are drawn together."""
        token_ids, broken = _greatest_tokens(logits)
        methods: dict[DrawMethod, list[int]] = {}
        for row, slot in enumerate(slots):
            if not self._parameters[slot].is_greedy:
                methods.setdefault(draw_method(self._parameters[slot], self._device), []).append(row)
        for method, rows in methods.items():
            chosen, positions = [slots[row] for row in rows], [num_tokens[row] for row in rows]
            keys = row_keys(self._seeds[chosen], np.array(positions, np.uint64))
            index = to_device(rows, self._device)
            token_ids[index] = draw_rows(
                logits if len(rows) == len(logits) else logits[index],
                [self._parameters[slot] for slot in chosen],
                to_device(keys, self._device),
                method,
            )
        return token_ids.masked_fill_(broken, 0) if methods else token_ids, broken

    def takes_parts(self, parameters: SamplingParameters) -> bool:
        """See Chooser.takes_parts."""
        return parameters.is_greedy

    def choose_part(
        self, logits: torch.Tensor, part: VocabularyPart, slots: Sequence[int], num_tokens: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Chooser.choose_part."""
        own = logits.max(dim=-1)
        greatest, token_ids = part.best(own.values, own.indices + part.first)
        broken = ~torch.isfinite(greatest)
        return token_ids.masked_fill_(broken, 0), broken

    def survey(self, logits: torch.Tensor, own: torch.Tensor, most: int, sums: bool) -> Survey:
        """See Chooser.survey."""
        totals = logits.logsumexp(-1) if sums else logits.amax(-1)
        best = logits.topk(most, dim=-1)
        return Survey(totals.double(), (logits > own[:, None]).sum(-1), best.values, best.indices)
