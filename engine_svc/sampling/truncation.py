"""Temperature, min-p, top-k and top-p, and the draw from what they leave."""

from __future__ import annotations

import torch


def draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    noise: torch.Tensor,
) -> torch.Tensor:
    """Draws one token per row by inverting the cumulative distribution at `noise`.

    Args:
        logits: float32 [rows, vocabulary]
        temperature: float32 [rows], above 0
        top_k: int64 [rows], 0 keeps all; top_p, min_p: float32 [rows]; None where no row uses it.
        noise: float32 [rows], in [0, 1)

    Returns:
        int64 [rows]
    """
    scaled = logits / temperature[:, None]
    if top_k is None and top_p is None:
        return _invert(_keep_min_p(scaled.softmax(-1), min_p), noise)
    ordered, token_ids = scaled.sort(dim=-1, descending=True)
    probabilities = _keep_min_p(ordered.softmax(-1), min_p)
    if top_k is not None:
        ranks = torch.arange(logits.shape[-1], device=logits.device)
        probabilities = probabilities.masked_fill((ranks >= top_k[:, None]) & (top_k > 0)[:, None], 0.0)
    if top_p is not None:
        probabilities /= probabilities.sum(-1, keepdim=True)
        before = probabilities.cumsum(-1) - probabilities
        # The mass before the most likely token is 0 but for rounding: it is always kept.
        before[:, 0] = 0.0
        probabilities = probabilities.masked_fill((before >= top_p[:, None]), 0.0)
    return token_ids.gather(-1, _invert(probabilities, noise)[:, None])[:, 0]


def _keep_min_p(probabilities: torch.Tensor, min_p: torch.Tensor | None) -> torch.Tensor:
    if min_p is None:
        return probabilities
    floor = probabilities.amax(-1, keepdim=True) * min_p[:, None]
    return probabilities.masked_fill(probabilities < floor, 0.0)


def _invert(probabilities: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The first index at which the cumulative sum exceeds noise * total; its probability is never 0."""
    cumulative = probabilities.cumsum(-1)
    total = cumulative[:, -1:]
    target = torch.minimum(noise[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)[:, 0]
