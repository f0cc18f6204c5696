"""Temperature, min-p, top-k and top-p, and sampling from the tokens that they keep.

Sampling is an exponential race: each token of a row has its own exponential random number, and the token whose
probability divided by that number is greatest is sampled. So each token is sampled with its probability (the Gumbel-max
trick of Maddison, Tarlow and Minka 2014, without the logarithm). Another model with the same numbers samples the same
token wherever the two agree on what is likely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine_svc.sampling.noise import exponentials
from engine_svc.transfer import to_device
from quire.sampling import NEUTRAL, SamplingParameters

ALL_LIMITS = SamplingParameters(top_k=2, top_p=0.5, min_p=0.1)  # for warm-up
# This many most likely tokens are tried first: sorting a whole vocabulary can take longer than the model's forward.
_CANDIDATES = 1024
# Random numbers that are generated at a time.
_RACING = 2**20
# Candidate counts for top-k: the smallest that is at least k is used.
_TOP_K_CANDIDATES = (64, 1024)


@dataclass(frozen=True)
class DrawMethod:
    """How a row is sampled, as far as its token may depend on it. Rows with the same method are sampled together."""

    truncates: bool = True
    candidates: int | None = None  # upper bound of top-k, which is never 0; None if there is no such bound


def draw_method(parameters: SamplingParameters, device: torch.device) -> DrawMethod:
    """Chosen by a row's own parameters only, so that other rows do not affect its token; on a GPU there is only one."""
    if device.type != "cpu":
        return DrawMethod()
    top_k = parameters.top_k
    candidates = next((count for count in _TOP_K_CANDIDATES if 0 < top_k <= count), None)
    return DrawMethod(top_k > 0 or parameters.top_p < 1.0, candidates)


def processed_logits(
    logits: torch.Tensor, parameters: Sequence[SamplingParameters], token_ids: torch.Tensor | None = None
) -> torch.Tensor:
    """The logits that tokens are sampled from: divided by the temperature, and -inf for tokens that are not kept.

    Args:
        logits: float32 [rows, vocabulary]
        parameters: one per row; logits of greedy rows are not changed.
        token_ids: int64 [rows], the sampled tokens, which are always kept: among equally likely tokens at the cutoff,
            the draw may have kept different ones.
    """
    drawn = [NEUTRAL if each.is_greedy else each for each in parameters]
    temperature, top_k, top_p, min_p = _columns(drawn, logits)
    scaled = logits / temperature[:, None]
    if top_k is None and top_p is None and min_p is None:
        return scaled
    probabilities = _keep_min_p(scaled.softmax(-1), min_p)
    if top_k is not None or top_p is not None:
        ordered, order = probabilities.sort(dim=-1, descending=True)
        kept = _truncate(ordered, probabilities.sum(-1, keepdim=True), top_k, top_p)
        probabilities = probabilities.scatter(-1, order, kept)
    truncates = to_device([each.top_k > 0 or each.top_p < 1.0 or each.min_p > 0.0 for each in drawn], logits.device)
    dropped = (probabilities == 0.0) & truncates[:, None]
    if token_ids is not None:
        dropped.scatter_(-1, token_ids[:, None], False)
    return scaled.masked_fill_(dropped, -torch.inf)


def draw_rows(
    logits: torch.Tensor, parameters: Sequence[SamplingParameters], keys: torch.Tensor, method: DrawMethod
) -> torch.Tensor:
    """Samples a token for each row, all of which have the same method; see `draw`."""
    columns = packed_columns(parameters, logits) if logits.is_cuda else _columns(parameters, logits)
    return draw(logits, *columns, keys, method.candidates)


def packed_columns(
    parameters: Sequence[SamplingParameters], logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Like `_columns`, but always all four, in one copy: the GPU kernel is the same for all parameters."""
    values = np.array([(each.temperature, 0.0, each.top_p, each.min_p) for each in parameters], np.float32).T.copy()
    values[1] = np.array([min(each.top_k, logits.shape[-1]) for each in parameters], np.int32).view(np.float32)
    temperature, top_k, top_p, min_p = to_device(values, logits.device)
    return temperature, top_k.view(torch.int32), top_p, min_p


def _columns(
    parameters: Sequence[SamplingParameters], logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Temperature, top-k, top-p and min-p per row, for `draw`; None if no row uses one."""

    def column(value: Callable[[SamplingParameters], float], neutral: float) -> torch.Tensor | None:
        values = [value(each) for each in parameters]
        return None if all(each == neutral for each in values) else to_device(values, logits.device)

    size = logits.shape[-1]
    return (
        to_device([each.temperature for each in parameters], logits.device),
        column(lambda each: min(each.top_k, size), 0),
        column(lambda each: each.top_p, 1.0),
        column(lambda each: each.min_p, 0.0),
    )


def draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    keys: torch.Tensor,
    candidates: int | None = None,
) -> torch.Tensor:
    """Samples one token per row.

    Args:
        logits: float32 [rows, vocabulary]
        temperature: float32 [rows], above 0
        top_k: int64 [rows], 0 keeps all; top_p, min_p: float32 [rows]; None means that no row uses it.
        keys: int64 [rows, 2], keys of the rows' noise.
        candidates: upper bound of every row's top_k, none of which is 0; None if there is no such bound.

    Returns:
        int64 [rows]
    """
    if logits.is_cuda:
        # Triton is imported only where it is used.
        from engine_svc.kernels.sampling import draw as draw_without_sorting

        return draw_without_sorting(logits, temperature, top_k, top_p, min_p, keys)
    probabilities = _keep_min_p((logits / temperature[:, None]).softmax(-1), min_p)
    if top_k is None and top_p is None:
        return _race(probabilities, torch.arange(probabilities.shape[-1]), keys)
    total, size = probabilities.sum(-1, keepdim=True), probabilities.shape[-1]
    if candidates is not None:
        return _draw_ordered(probabilities.topk(min(candidates, size)), total, top_k, top_p, keys)
    if top_p is None:
        return _draw_ordered(probabilities.sort(dim=-1, descending=True), total, top_k, top_p, keys)
    best = probabilities.topk(min(_CANDIDATES, size))
    tokens = _draw_ordered(best, total, top_k, top_p, keys)
    enough = best[0].sum(-1) >= top_p * total[:, 0]
    if top_k is not None:
        enough &= top_k == 0
    rows = (~enough).nonzero()[:, 0]
    if len(rows):
        ordered = probabilities[rows].sort(dim=-1, descending=True)
        some_k = None if top_k is None else top_k[rows]
        tokens[rows] = _draw_ordered(ordered, total[rows], some_k, top_p[rows], keys[rows])
    return tokens


def _draw_ordered(
    ordered: tuple[torch.Tensor, torch.Tensor],
    total: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    keys: torch.Tensor,
) -> torch.Tensor:
    """Samples from the most likely tokens.

    Args:
        ordered: their probabilities, in descending order, and their ids.
        total: [rows, 1], total probability of all tokens.
    """
    probabilities = _truncate(ordered[0], total, top_k, top_p)
    return ordered[1].gather(-1, _race(probabilities, ordered[1], keys)[:, None])[:, 0]


def _truncate(
    probabilities: torch.Tensor, total: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor | None
) -> torch.Tensor:
    """Descending probabilities, with 0 for tokens that top-k and top-p drop."""
    if top_k is not None:
        ranks = torch.arange(probabilities.shape[-1], device=probabilities.device)
        limited = (top_k > 0)[:, None]
        probabilities = probabilities.masked_fill((ranks >= top_k[:, None]) & limited, 0.0)
        total = torch.where(limited, probabilities.sum(-1, keepdim=True), total)
    if top_p is not None:
        shares = probabilities / total
        before = shares.cumsum(-1) - shares
        # The mass before the most likely token is 0 except for rounding: it is always kept.
        before[:, 0] = 0.0
        probabilities = probabilities.masked_fill((before >= top_p[:, None]), 0.0)
    return probabilities


def _keep_min_p(probabilities: torch.Tensor, min_p: torch.Tensor | None) -> torch.Tensor:
    if min_p is None:
        return probabilities
    floor = probabilities.amax(-1, keepdim=True) * min_p[:, None]
    return probabilities.masked_fill(probabilities < floor, 0.0)


def _race(probabilities: torch.Tensor, token_ids: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Index of the sampled token in each row; arbitrary if the probabilities are NaN.

    Args:
        probabilities: [rows, tokens], not necessarily normalized.
        token_ids: [rows, tokens] or [tokens]
    """
    token_ids = token_ids.expand_as(probabilities)
    parts = torch.arange(len(probabilities)).split(max(1, _RACING // probabilities.shape[-1]))
    return torch.cat([(probabilities[rows] / exponentials(keys[rows], token_ids[rows])).argmax(-1) for rows in parts])
