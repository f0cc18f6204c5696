"""Which embeddings of a video are kept: those that differ most from the ones at the same place a frame before.

Efficient Video Sampling (EVS, Bagrov et al. 2025), as in vLLM: the first frame is kept whole.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

_MORE_THAN_ANY = 255.0  # cosines differ by 2 at most


def most_changed(embeddings: torch.Tensor, num_frames: int, count: int) -> torch.Tensor:
    """The indices of the embeddings that are kept: int64 [count], ascending.

    Args:
        embeddings: [num_frames * places, hidden_size]; at least as many are kept as a frame has.
    """
    frames = embeddings.float().view(num_frames, -1, embeddings.shape[-1])
    changes = 1 - F.cosine_similarity(frames[1:], frames[:-1], dim=-1)
    changes = torch.cat([torch.full_like(frames[:1, :, 0], _MORE_THAN_ANY), changes])
    return changes.flatten().argsort(descending=True, stable=True)[:count].sort().values
