"""Copies of KV cache blocks between device and host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from engine_svc.attention.stored import bits
from engine_svc.transfer import to_device, to_host


class BlockMoves:
    """Moves whole blocks of all layers, whatever the layout inside of them."""

    block_dimension: int = 1  # the dimension of a layer's cache that counts blocks

    def allocate_host(self, caches: Sequence[torch.Tensor], num_blocks: int) -> list[torch.Tensor]:
        """Allocates the caches' second tier in host memory: the same layout with another number of blocks.

        Raises:
            MemoryError: there is not enough host memory.
        """
        found = []
        for cache in caches if num_blocks else ():
            shape = list(cache.shape)
            shape[self.block_dimension] = num_blocks
            try:
                found.append(torch.empty(shape, dtype=cache.dtype, pin_memory=cache.is_cuda))
            except RuntimeError as error:  # raised by torch if host memory runs out
                size = num_blocks * sum(each.nbytes // each.shape[self.block_dimension] for each in caches)
                wanted = f"{size / 2**30:.1f} GiB of host memory for --swap-space"
                raise MemoryError(f"{wanted} cannot be allocated") from error
        return found

    def blocks_on_host(self, caches: Sequence[torch.Tensor], block_ids: Sequence[int]) -> list[torch.Tensor]:
        """Copies blocks of every layer to the host, in the order of the device's stream; see `to_host`."""
        return [to_host(blocks) for blocks in self._taken(caches, block_ids)]

    def put_blocks(
        self, blocks: Iterable[torch.Tensor], caches: Sequence[torch.Tensor], block_ids: Sequence[int]
    ) -> None:
        """Copies blocks of every layer, as `blocks_on_host` returns them, into the caches at `block_ids`."""
        at = to_device(torch.tensor(block_ids, dtype=torch.int64), caches[0].device)
        for cache, moved in zip(caches, blocks, strict=True):
            bits(cache).index_copy_(self.block_dimension, at, to_device(moved, cache.device))

    def load_blocks(
        self, memory: Sequence[torch.Tensor], places: Sequence[int], caches: Sequence[torch.Tensor],
        block_ids: Sequence[int],
    ) -> None:  # fmt: skip
        """Copies blocks of every layer from host memory to the device, without waiting for the device."""
        self.put_blocks(self._taken(memory, places), caches, block_ids)

    def _taken(self, caches: Sequence[torch.Tensor], block_ids: Sequence[int]) -> Iterator[torch.Tensor]:
        at = to_device(torch.tensor(block_ids, dtype=torch.int64), caches[0].device)
        return (bits(cache).index_select(self.block_dimension, at) for cache in caches)
