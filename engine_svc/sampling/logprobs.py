"""Log-probabilities of sampled and prompt tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from engine_svc.parallel.vocabulary import VocabularyPart
from engine_svc.plan import PositionLogprobs
from engine_svc.transfer import to_device, to_host


@dataclass(frozen=True)
class Scoring:
    """What is reported as a token's log-probability; see the option `logprobs_mode`."""

    is_processed: bool = False  # from the logits that tokens are sampled from, not the model's raw ones
    is_normalised: bool = True  # log-probabilities, not the logits themselves


PROCESSED = Scoring(is_processed=True)


def make_scoring(mode: str) -> Scoring:
    """The scoring for a value of the option."""
    return Scoring(mode.startswith("processed"), mode.endswith("logprobs"))


@dataclass(frozen=True)
class Alternatives:
    """The tokens reported for a position besides the token at it."""

    count: int  # number of most likely tokens
    token_ids: Sequence[int] = ()  # these named tokens


@dataclass(frozen=True)
class ScoredPositions:
    """Scores being copied to the host."""

    token_ids: torch.Tensor  # int64 [rows]
    logprobs: torch.Tensor  # float32 [rows], scores of these tokens
    ranks: torch.Tensor  # int64 [rows]
    best: tuple[torch.Tensor, torch.Tensor]  # float32 and int64 [rows, most]: the most likely tokens
    named: torch.Tensor  # float32, scores of the named tokens, row after row
    wanted: Sequence[Alternatives]

    def read(self) -> list[PositionLogprobs]:
        """One entry per row. Call it once the step is done."""
        own, ranks, ids = self.logprobs.tolist(), self.ranks.tolist(), self.token_ids.tolist()
        values, indices = (part.tolist() for part in self.best)
        named = iter(self.named.tolist())
        return [
            PositionLogprobs(
                [ids[row], *indices[row][: wanted.count], *wanted.token_ids],
                [own[row], *values[row][: wanted.count], *(next(named) for _ in wanted.token_ids)],
                ranks[row],
            )
            for row, wanted in enumerate(self.wanted)
        ]


@dataclass(frozen=True)
class Survey:
    """What the scores of rows are based on, from all of their logits or from one rank's part."""

    totals: torch.Tensor  # float64 [rows]: log-sum-exp or greatest logit; not finite if invalid
    greater: torch.Tensor  # int64 [rows], number of logits greater than that of the row's token
    best_logits: torch.Tensor  # float32 [rows, most], of the most likely tokens
    best_ids: torch.Tensor  # int64 [rows, most], relative to the first surveyed token

    def of_all(self, part: VocabularyPart, most: int, sums: bool) -> Survey:
        """Combines the surveys of all ranks. Each rank sends two numbers per row and two per alternative."""
        width = min(most, part.share)
        missing = width - self.best_ids.shape[1]  # the last rank may have fewer tokens
        sent = (
            self.totals[:, None], self.greater[:, None].double(),
            F.pad(self.best_logits.double(), (0, missing), value=-torch.inf),
            F.pad(self.best_ids + part.first, (0, missing), value=part.size).double(),
        )  # fmt: skip
        found = part.gather(torch.cat(sent, dim=-1))  # float64 is exact for all of these
        totals = found[:, :, 0].logsumexp(-1) if sums else found[:, :, 0].amax(-1)
        logits, ids = found[:, :, 2 : 2 + width].flatten(1), found[:, :, 2 + width :].flatten(1)
        logits, order = logits.sort(dim=-1, descending=True, stable=True)  # smallest ids first among equal logits
        best = logits[:, :most].float(), ids.gather(1, order[:, :most]).long()
        return Survey(totals, found[:, :, 1].sum(-1).long(), *best)

    def scored(
        self, token_ids: torch.Tensor, own: torch.Tensor, named: torch.Tensor, wanted: Sequence[Alternatives],
        is_normalised: bool,
    ) -> ScoredPositions:  # fmt: skip
        """Turns the survey into scores, and starts copying them to the host.

        Args:
            token_ids: int64 [rows], each row's token.
            own: float32 [rows], the logits of these tokens.
            named: float32, the logits of named tokens, row after row.
            is_normalised: see Scoring.
        """
        broken = ~self.totals.isfinite()
        offsets = self.totals if is_normalised else torch.zeros_like(self.totals)

        def score(logits: torch.Tensor, offsets: torch.Tensor, broken: torch.Tensor) -> torch.Tensor:
            return to_host((logits.double() - offsets).float().masked_fill(broken, 0.0))

        owners = to_device(_owners(wanted), named.device)
        return ScoredPositions(
            to_host(token_ids),
            score(own, offsets, broken),
            to_host((self.greater + 1).masked_fill(broken, 1)),
            (
                score(self.best_logits, offsets[:, None], broken[:, None]),
                to_host(self.best_ids.masked_fill(broken[:, None], 0)),
            ),
            score(named, offsets[owners], broken[owners]),
            wanted,
        )


def own_and_named(
    logits: torch.Tensor, token_ids: torch.Tensor, wanted: Sequence[Alternatives], part: VocabularyPart | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the logits of each row's token, and those of the tokens that rows name, row after row.

    Args:
        logits, part: see Chooser.score.
        token_ids: int64 [rows]
    """
    rows = np.concatenate((np.arange(len(wanted)), _owners(wanted)))
    named = to_device(np.array([each for row in wanted for each in row.token_ids], np.int64), logits.device)
    at, ids = to_device(rows, logits.device), torch.cat((token_ids, named))
    found = logits[at, ids] if part is None else part.at(logits, at, ids)
    return found[: len(wanted)], found[len(wanted) :]


def _owners(wanted: Sequence[Alternatives]) -> npt.NDArray[np.int64]:
    """The row that each named token belongs to."""
    return np.repeat(np.arange(len(wanted)), [len(each.token_ids) for each in wanted])
