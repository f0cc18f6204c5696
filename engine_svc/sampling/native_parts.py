"""Sampling with the C++ kernels from logits that ranks share: each rank sends results for its own tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.native.library import Kernels
from engine_svc.parallel.vocabulary import VocabularyPart
from quire.sampling import SamplingParameters

# Must match sampling.cpp.
WANTED = np.dtype([("seed", "u8"), ("temperature", "f8"), ("top_p", "f8"), ("min_p", "f8"), ("top_k", "i8")])
# Number of likeliest tokens that each rank sends for a row with top-p; nearly always enough.
_CANDIDATES = 256
# Most tokens that a rank sends for a row with top-k, which needs k.
MOST_CANDIDATES = 1024


def wanted(parameters: SamplingParameters, seed: int) -> tuple[float, ...]:
    """A sequence's entry in a WANTED table."""
    temperature = 0.0 if parameters.is_greedy else parameters.temperature
    return seed, temperature, parameters.top_p, parameters.min_p, parameters.top_k


@dataclass(frozen=True)
class PartRows:
    """Rows to sample, with this rank's part of their logits."""

    logits: torch.Tensor  # float32 [rows, tokens of this rank]
    greatest: torch.Tensor  # float32 [rows], greatest logit over all ranks
    wanted: npt.NDArray[np.void]  # one entry per slot
    slots: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]  # positions of the rows' noise

    @property
    def own_wanted(self) -> npt.NDArray[np.void]:
        """The entry of each row."""
        return self.wanted[self.slots]

    @property
    def racing(self) -> torch.Tensor:
        """Indices, int64, of rows sampled from all tokens, except for min-p."""
        return torch.from_numpy(self._draws & ~self._truncates).nonzero()[:, 0]

    @property
    def truncated(self) -> torch.Tensor:
        """Indices, int64, of rows sampled with top-k or top-p."""
        return torch.from_numpy(self._draws & self._truncates).nonzero()[:, 0]

    @property
    def _draws(self) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self.own_wanted["temperature"] > 0
        return found

    @property
    def _truncates(self) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (self.own_wanted["top_k"] > 0) | (self.own_wanted["top_p"] < 1)
        return found

    def take(self, rows: torch.Tensor) -> PartRows:
        """A selection of the rows."""
        if len(rows) == len(self.logits):
            return self
        at = rows.numpy()
        return replace(
            self, logits=self.logits[rows], greatest=self.greatest[rows], slots=self.slots[at],
            positions=self.positions[at],
        )  # fmt: skip


def draw_by_race(kernels: Kernels, part: VocabularyPart, some: PartRows) -> torch.Tensor:
    """Samples tokens, int64 [rows]: the winner of each rank's race with min-p and temperature that scores best."""
    rows, size = some.logits.shape
    token_ids, scores = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.float64)
    kernels.sample_part(
        some.logits.data_ptr(), some.logits.stride(0), rows, size, part.first, some.greatest.data_ptr(),
        some.wanted.ctypes.data, some.slots.ctypes.data, some.positions.ctypes.data, token_ids.data_ptr(),
        scores.data_ptr(),
    )  # fmt: skip
    return part.best(scores, token_ids)[1]


def draw_from_candidates(kernels: Kernels, part: VocabularyPart, some: PartRows) -> torch.Tensor:
    """Samples tokens, int64 [rows], by top-k or top-p from the likeliest ones of each rank.

    The whole logits are gathered only for rows that may keep other tokens too.
    """
    token_ids, enough = _draw_from(kernels, part, some, _gather(kernels, part, some))
    rows = (~enough).nonzero()[:, 0]
    if len(rows):
        token_ids[rows] = _draw_whole(kernels, part, some.take(rows))
    return token_ids


def _gather(
    kernels: Kernels, part: VocabularyPart, some: PartRows
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gathers the candidates of all ranks.

    Returns:
        Their logits, float32, and ids, int32, both [rows, ranks, candidates]; the mass of each row over all tokens,
        float64 [rows].
    """
    rows, size = some.logits.shape
    top_k = some.own_wanted["top_k"]
    most = min(part.share, int(np.where(top_k > 0, top_k, _CANDIDATES).max()))
    own = torch.empty((rows, 2 + 2 * most), dtype=torch.int32)  # sent per row: mass, logits, ids
    mass, logits, ids = torch.empty(rows, dtype=torch.float64), torch.empty(rows, most), own.new_empty(rows, most)
    kernels.candidates(
        some.logits.data_ptr(), some.logits.stride(0), rows, size, part.first, some.greatest.data_ptr(),
        some.wanted.ctypes.data, some.slots.ctypes.data, most, logits.data_ptr(), ids.data_ptr(), mass.data_ptr(),
    )  # fmt: skip
    own[:, :2], own[:, 2 : 2 + most] = mass[:, None].view(torch.int32), logits.view(torch.int32)
    own[:, 2 + most :] = ids
    found = part.gather(own)
    masses = found[:, :, :2].contiguous().view(torch.float64)[:, :, 0]
    all_logits, all_ids = found[:, :, 2 : 2 + most], found[:, :, 2 + most :]
    return all_logits.contiguous().view(torch.float32), all_ids.contiguous(), masses.sum(-1)


def _draw_from(
    kernels: Kernels, part: VocabularyPart, some: PartRows, found: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples tokens, int64 [rows]; bool [rows] says for which rows the candidates were enough."""
    logits, ids, masses = found
    rows, ranks, most = logits.shape
    token_ids, enough = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.bool)
    kernels.sample_candidates(
        logits.data_ptr(), ids.data_ptr(), masses.data_ptr(), rows, ranks, most, some.greatest.data_ptr(),
        some.wanted.ctypes.data, some.slots.ctypes.data, some.positions.ctypes.data, token_ids.data_ptr(),
        enough.data_ptr(),
    )  # fmt: skip
    return token_ids, enough


def _draw_whole(kernels: Kernels, part: VocabularyPart, some: PartRows) -> torch.Tensor:
    whole = part.whole(some.logits)
    return sample(kernels, whole, some.wanted, some.slots, some.positions)[0]


def sample(
    kernels: Kernels, logits: torch.Tensor, wanted: npt.NDArray[np.void], slots: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Samples from whole logits, like Chooser.choose.

    Args:
        wanted: one entry per slot.
    """
    rows, size = logits.shape
    token_ids, broken = np.empty(rows, np.int64), np.empty(rows, np.bool_)
    kernels.sample(
        logits.data_ptr(), logits.stride(0), rows, size, wanted.ctypes.data, slots.ctypes.data, positions.ctypes.data,
        token_ids.ctypes.data, broken.ctypes.data,
    )  # fmt: skip
    return torch.from_numpy(token_ids), torch.from_numpy(broken)
