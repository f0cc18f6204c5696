"""Choosing and scoring tokens by the C++ kernels: each row's logits are read once, and nothing is sorted whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.native.library import Kernels
from engine_svc.parallel.vocabulary import VocabularyPart
from engine_svc.sampling.choosers import Chooser
from engine_svc.sampling.logprobs import Alternatives, ScoredPositions
from quire.sampling import SamplingParameters

# As sampling.cpp has it.
_WANTED = np.dtype([("seed", "u8"), ("temperature", "f8"), ("top_p", "f8"), ("min_p", "f8"), ("top_k", "i8")])


class NativeChooser(Chooser):
    """What slots want lies in a table that the kernel reads."""

    def __init__(self, max_num_seqs: int, kernels: Kernels) -> None:
        self._kernels = kernels
        self._wanted = np.zeros(max_num_seqs, _WANTED)

    def add(self, slot: int, parameters: SamplingParameters, seed: int) -> None:
        """See Chooser.add."""
        temperature = 0.0 if parameters.is_greedy else parameters.temperature
        self._wanted[slot] = seed, temperature, parameters.top_p, parameters.min_p, parameters.top_k

    def choose(
        self, logits: torch.Tensor, slots: Sequence[int], num_tokens: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Chooser.choose."""
        at, positions = np.array(slots, np.int64), np.array(num_tokens, np.int64)
        return self._choose(logits, self._wanted, at, positions)

    def _choose(
        self, logits: torch.Tensor, wanted: npt.NDArray[np.void], at: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        rows, size = logits.shape
        token_ids, broken = np.empty(rows, np.int64), np.empty(rows, np.bool_)
        self._kernels.sample(
            logits.data_ptr(), logits.stride(0), rows, size, wanted.ctypes.data, at.ctypes.data,
            positions.ctypes.data, token_ids.ctypes.data, broken.ctypes.data,
        )  # fmt: skip
        return torch.from_numpy(token_ids), torch.from_numpy(broken)

    def takes_parts(self, parameters: SamplingParameters) -> bool:
        """See Chooser.takes_parts: what is left of top-k and top-p only all logits say."""
        return parameters.is_greedy or (parameters.top_k <= 0 and parameters.top_p >= 1.0)

    def choose_part(
        self, logits: torch.Tensor, part: VocabularyPart, slots: Sequence[int], num_tokens: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Chooser.choose_part: the likeliest token first, by whose logit all ranks weigh those that are drawn."""
        rows = len(logits)
        nothing = np.zeros(rows, np.int64)
        own, failed = self._choose(logits, np.zeros(1, _WANTED), nothing, nothing)
        values = logits.gather(-1, own[:, None])[:, 0]
        if failed.any():  # infinite, or no number
            values = torch.where(failed, logits.amax(-1), values)
        greatest, token_ids = part.best(values, own + part.first)
        draws = torch.from_numpy(self._wanted["temperature"][list(slots)] > 0).nonzero()[:, 0]
        if len(draws):
            at, positions = np.array(slots, np.int64), np.array(num_tokens, np.int64)
            token_ids[draws] = self._draw(logits, part, greatest, draws, at, positions)
        broken = ~torch.isfinite(greatest)
        return token_ids.masked_fill_(broken, 0), broken

    def _draw(
        self, logits: torch.Tensor, part: VocabularyPart, greatest: torch.Tensor, draws: torch.Tensor,
        slots: npt.NDArray[np.int64], positions: npt.NDArray[np.int64],
    ) -> torch.Tensor:  # fmt: skip
        """The tokens of those rows that draw.

        Args:
            greatest: logit of each row, of all ranks.
            draws: int64, which rows those are.
        """
        some = logits if len(draws) == len(logits) else logits[draws]
        rows, size = some.shape
        above = greatest[draws].float()
        at, positions = slots[draws.numpy()], positions[draws.numpy()]
        token_ids, scores = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.float64)
        self._kernels.sample_part(
            some.data_ptr(), some.stride(0), rows, size, part.first, above.data_ptr(), self._wanted.ctypes.data,
            at.ctypes.data, positions.ctypes.data, token_ids.data_ptr(), scores.data_ptr(),
        )  # fmt: skip
        return part.best(scores, token_ids)[1]

    def score(
        self, logits: torch.Tensor, token_ids: torch.Tensor, wanted: Sequence[Alternatives], is_normalised: bool
    ) -> ScoredPositions:
        """See Chooser.score."""
        rows, size = logits.shape
        most = max(each.count for each in wanted)
        if most > size:
            raise ValueError(f"{most} alternatives in a vocabulary of {size}")
        own, ranks, offsets = np.empty(rows, np.float32), np.empty(rows, np.int64), np.empty(rows)
        best_scores, best_tokens = np.empty((rows, most), np.float32), np.empty((rows, most), np.int64)
        self._kernels.score(
            logits.data_ptr(), logits.stride(0), rows, size, is_normalised, token_ids.data_ptr(), own.ctypes.data,
            ranks.ctypes.data, most, best_scores.ctypes.data, best_tokens.ctypes.data, offsets.ctypes.data,
        )  # fmt: skip
        named = None
        if any(each.token_ids for each in wanted):
            owners = np.repeat(np.arange(rows), [len(each.token_ids) for each in wanted])
            ids = [token_id for each in wanted for token_id in each.token_ids]
            named = torch.from_numpy((logits.numpy()[owners, ids] - offsets[owners]).astype(np.float32))
        best = (torch.from_numpy(best_scores), torch.from_numpy(best_tokens)) if most else None
        return ScoredPositions(token_ids, torch.from_numpy(own), torch.from_numpy(ranks), best, named, wanted)
