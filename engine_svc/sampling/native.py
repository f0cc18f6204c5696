"""Samples and scores tokens with the C++ kernels, which read each row's logits once and never sort a whole row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine_svc.native.library import Kernels
from engine_svc.parallel.vocabulary import VocabularyPart
from engine_svc.sampling.choosers import Chooser
from engine_svc.sampling.logprobs import Survey
from engine_svc.sampling.native_parts import (
    MOST_CANDIDATES,
    WANTED,
    PartRows,
    draw_by_race,
    draw_from_candidates,
    sample,
    wanted,
)
from quire.sampling import SamplingParameters


class NativeChooser(Chooser):
    """Samples with the C++ kernels. The slots' parameters are in a table that the kernel reads."""

    def __init__(self, max_num_seqs: int, kernels: Kernels) -> None:
        self._kernels = kernels
        self._wanted = np.zeros(max_num_seqs, WANTED)

    def add(self, slot: int, parameters: SamplingParameters, seed: int) -> None:
        """See Chooser.add."""
        self._wanted[slot] = wanted(parameters, seed)

    def choose(
        self, logits: torch.Tensor, slots: Sequence[int], num_tokens: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Chooser.choose."""
        at, positions = np.array(slots, np.int64), np.array(num_tokens, np.int64)
        return sample(self._kernels, logits, self._wanted, at, positions)

    def takes_parts(self, parameters: SamplingParameters) -> bool:
        """See Chooser.takes_parts."""
        return parameters.is_greedy or parameters.top_k <= MOST_CANDIDATES

    def choose_part(
        self, logits: torch.Tensor, part: VocabularyPart, slots: Sequence[int], num_tokens: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Chooser.choose_part. Finds the likeliest token first, whose logit scales the draws on all ranks."""
        rows = len(logits)
        nothing = np.zeros(rows, np.int64)
        own, failed = sample(self._kernels, logits, np.zeros(1, WANTED), nothing, nothing)
        values = logits.gather(-1, own[:, None])[:, 0]
        if failed.any():  # infinite or NaN
            values = torch.where(failed, logits.amax(-1), values)
        greatest, token_ids = part.best(values, own + part.first)
        some = PartRows(
            logits, greatest.float(), self._wanted, np.array(slots, np.int64), np.array(num_tokens, np.int64)
        )
        for rows_of, draw in ((some.racing, draw_by_race), (some.truncated, draw_from_candidates)):
            if len(rows_of):
                token_ids[rows_of] = draw(self._kernels, part, some.take(rows_of))
        broken = ~torch.isfinite(greatest)
        return token_ids.masked_fill_(broken, 0), broken

    def survey(self, logits: torch.Tensor, own: torch.Tensor, most: int, sums: bool) -> Survey:
        """See Chooser.survey."""
        rows, size = logits.shape
        own = own.contiguous()
        totals, greater = torch.empty(rows, dtype=torch.float64), torch.empty(rows, dtype=torch.int64)
        best = torch.empty(rows, most), torch.empty((rows, most), dtype=torch.int64)
        self._kernels.score(
            logits.data_ptr(), logits.stride(0), rows, size, sums, own.data_ptr(), totals.data_ptr(),
            greater.data_ptr(), most, best[0].data_ptr(), best[1].data_ptr(),
        )  # fmt: skip
        return Survey(totals, greater, *best)
