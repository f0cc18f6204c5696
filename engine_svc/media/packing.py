"""Embeddings of media as bytes, and back."""

from __future__ import annotations

import numpy as np
import torch

from engine_svc.media.base import EncodedImage
from engine_svc.plan import EncodedRows


def pack(encoded: EncodedImage) -> EncodedRows:
    """Copies embeddings from the device to bytes."""
    embeddings, deep = encoded.embeddings, encoded.deep
    rows, hidden = embeddings.shape
    parts = [embeddings] if deep is None else [embeddings, deep]
    return EncodedRows(
        str(embeddings.dtype).removeprefix("torch."), rows, hidden, 0 if deep is None else deep.shape[1],
        [] if encoded.kept is None else encoded.kept.tolist(), encoded.both_ways, b"".join(map(_bytes_of, parts)),
    )  # fmt: skip


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()


def unpack(rows: EncodedRows, device: torch.device) -> EncodedImage:
    """Copies embeddings to the device.

    Args:
        rows: of which the number of bytes has been checked.
    """
    values = torch.frombuffer(bytearray(rows.data), dtype=getattr(torch, rows.dtype)).to(device)
    size = rows.num_rows * rows.hidden_size
    embeddings = values[:size].view(rows.num_rows, rows.hidden_size)
    deep = values[size:].view(rows.num_rows, rows.num_deep, rows.hidden_size) if rows.num_deep else None
    return EncodedImage(embeddings, deep, np.array(rows.kept, np.int64) if rows.kept else None, rows.both_ways)
