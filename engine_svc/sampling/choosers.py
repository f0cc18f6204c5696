"""How tokens are chosen from logits, and scored: by torch's operators, or by the C++ kernels in `native.py`."""

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
    """Knows what each slot's sequence wants. A row's token depends on its own logits and parameters alone."""

    @abstractmethod
    def add(self, slot: int, parameters: SamplingParameters, seed: int) -> None:
        """Gives a slot to a sequence.

        Args:
            seed: of its noise, in 64 bits.
        """

    @abstractmethod
    def choose(
        self, logits: torch.Tensor, slots: Sequence[int], num_tokens: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A token for each row.

        Args:
            logits: float32 [rows, vocabulary], rows contiguous.
            num_tokens: known of each row's sequence, the position of its noise.

        Returns:
            int64 [rows], and bool [rows]: where nothing can be sampled, which gets token 0.
        """

    @abstractmethod
    def takes_parts(self, parameters: SamplingParameters) -> bool:
        """Whether `choose_part` can be asked for what a sequence wants."""

    @abstractmethod
    def choose_part(
        self, logits: torch.Tensor, part: VocabularyPart, slots: Sequence[int], num_tokens: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `choose`, of logits [rows, tokens of this rank] that ranks share: the same on all of them, and as one rank
        would that had all logits."""

    @abstractmethod
    def survey(self, logits: torch.Tensor, own: torch.Tensor, most: int, sums: bool) -> Survey:
        """What scores go by.

        Args:
            logits: float32 [rows, tokens]
            own: float32 [rows], the logit of each row's token, which is among them or not.
            most: alternatives wanted, no more than there are tokens.
            sums: the totals are to be logarithms of sums.
        """

    def score(
        self, logits: torch.Tensor, token_ids: torch.Tensor, wanted: Sequence[Alternatives], is_normalised: bool,
        part: VocabularyPart | None = None,
    ) -> ScoredPositions:  # fmt: skip
        """What stands at each position, and its alternatives. A row that is no distribution has zeros.

        Args:
            logits: float32 [rows, vocabulary], or the tokens of this rank.
            token_ids: int64 [rows], the token at each position.
            wanted: for each row.
            is_normalised: see Scoring.
            part: those tokens, where ranks share the logits. Each calls this.

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


class TorchChooser(Chooser):
    """On any device."""

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
        best = logits.max(dim=-1)
        token_ids = best.indices
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
        broken = ~torch.isfinite(best.values)
        return token_ids.masked_fill_(broken, 0), broken

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
