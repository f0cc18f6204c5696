"""Tensors of a device whose memory is given back, and taken again with what was in it."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch


class OffloadedTensors:
    """What lies in host memory in place of some tensors' own memory.

    The tensors stay the objects that they are, and so do all views of them: only what is behind them is gone, until
    `restore`. Until then nobody may read them.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        """
        Args:
            tensors: of one device; of those that share memory, any.
        """
        storages = {each.data_ptr(): each for each in map(torch.Tensor.untyped_storage, tensors) if each.nbytes()}
        self._kept: list[tuple[torch.UntypedStorage, torch.Tensor]] = []
        for storage in storages.values():
            content = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            kept = torch.empty(len(content), dtype=torch.uint8, pin_memory=content.is_cuda)
            self._kept.append((storage, kept.copy_(content)))
        for storage, _ in self._kept:
            storage.resize_(0)

    @classmethod
    def of_device(cls, device: torch.device) -> OffloadedTensors:
        """All that this process has on a GPU: weights, and the buffers beside them."""
        return cls(each for each in gc.get_objects() if isinstance(each, torch.Tensor) and each.device == device)

    @property
    def num_bytes(self) -> int:
        """In host memory."""
        return sum(kept.nbytes for _, kept in self._kept)

    def restore(self) -> None:
        """Everything is where it was, if not at the same address.

        Raises:
            torch.OutOfMemoryError: somebody else has the memory now; everything is in host memory still.
        """
        try:
            for storage, kept in self._kept:
                storage.resize_(kept.nbytes)
                torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).copy_(kept)
        except torch.OutOfMemoryError:
            for storage, _ in self._kept:
                storage.resize_(0)
            raise
        self._kept = []
