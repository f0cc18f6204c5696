"""Log-probabilities of sampled and prompt tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine_svc.plan import PositionLogprobs
from engine_svc.transfer import to_device, to_host


@dataclass(frozen=True)
class Scoring:
    """What counts as a token's log-probability; see the option `logprobs_mode`."""

    is_processed: bool = False  # of the logits that a token is drawn from, or of the model's own
    is_normalised: bool = True  # or the logits themselves


PROCESSED = Scoring(is_processed=True)


def make_scoring(mode: str) -> Scoring:
    """Of one of the option's values."""
    return Scoring(mode.startswith("processed"), mode.endswith("logprobs"))


@dataclass(frozen=True)
class Alternatives:
    """What is told of a position beside the token that stands there."""

    count: int  # of the most likely tokens
    token_ids: Sequence[int] = ()  # and these


@dataclass(frozen=True)
class ScoredPositions:
    """Scores on their way to the host."""

    token_ids: torch.Tensor  # int64 [rows]
    logprobs: torch.Tensor  # float32 [rows], of these tokens
    ranks: torch.Tensor  # int64 [rows]
    best: tuple[torch.Tensor, torch.Tensor] | None  # float32 and int64 [rows, most]: the most likely tokens
    named: torch.Tensor | None  # float32, of the named tokens, those of one row after the other
    wanted: Sequence[Alternatives]

    def read(self) -> list[PositionLogprobs]:
        """One entry for each row, once the step is done."""
        own, ranks, ids = self.logprobs.tolist(), self.ranks.tolist(), self.token_ids.tolist()
        values, indices = (part.tolist() for part in self.best) if self.best else ([[]] * len(ids),) * 2
        named = iter(() if self.named is None else self.named.tolist())
        return [
            PositionLogprobs(
                [ids[row], *indices[row][: wanted.count], *wanted.token_ids],
                [own[row], *values[row][: wanted.count], *(next(named) for _ in wanted.token_ids)],
                ranks[row],
            )
            for row, wanted in enumerate(self.wanted)
        ]


def score_positions(
    logits: torch.Tensor, token_ids: torch.Tensor, wanted: Sequence[Alternatives], is_normalised: bool = True
) -> ScoredPositions:
    """What stands at each position, and its alternatives.

    Args:
        logits: float32 [rows, vocabulary]
        token_ids: int64 [rows], the token at each position.
        wanted: for each row.
        is_normalised: see Scoring.
    """
    logprobs = logits.log_softmax(-1) if is_normalised else logits
    own = logprobs.gather(-1, token_ids[:, None])
    ranks = (logprobs > own).sum(-1) + 1
    most = max(each.count for each in wanted)
    best = logprobs.topk(most, dim=-1) if most else None
    return ScoredPositions(
        to_host(token_ids),
        to_host(own[:, 0]),
        to_host(ranks),
        (to_host(best.values), to_host(best.indices)) if best else None,
        _named(logprobs, wanted),
        wanted,
    )


def _named(logprobs: torch.Tensor, wanted: Sequence[Alternatives]) -> torch.Tensor | None:
    lists = [each.token_ids for each in wanted]
    if not any(lists):
        return None
    rows = to_device(np.repeat(np.arange(len(lists)), [len(ids) for ids in lists]), logprobs.device)
    return to_host(logprobs[rows, to_device(np.concatenate([np.array(ids, np.int64) for ids in lists]), rows.device)])
