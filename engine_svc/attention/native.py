"""The CPU backend with C++ kernels, which read the KV cache in place, in the same way for prefill and decode."""

from __future__ import annotations

import torch

from engine_svc.attention.base import AttentionBackend, AttentionMetadata, AttentionOptions, AttentionShape, Prepared
from engine_svc.memory import zeros_when_touched
from engine_svc.native.library import CACHED, TYPES, Kernels
from quire.errors import StartupError

_UNIT = 16  # head and block sizes must be multiples of this
_MOST_DIM = 576


def suits(shape: AttentionShape, kernels: Kernels | None) -> bool:
    """Whether the kernels can run this shape on this machine."""
    return (
        kernels is not None
        and shape.device.type == "cpu"
        and (shape.stored == shape.dtype or shape.stored in CACHED)
        and shape.dtype in TYPES
        and shape.head_dim % _UNIT == shape.block_size % _UNIT == 0
        and shape.head_dim <= _MOST_DIM
        and not shape.most_chosen
    )


class NativeBackend(AttentionBackend):
    """Attention by C++ kernels; the layout inside a block is private to them (`engine_svc/native/paged.h`)."""

    name = "native"
    block_dimension = 0
    records_calls = True

    def __init__(self, shape: AttentionShape, kernels: Kernels | None = None) -> None:
        """
        Raises:
            StartupError: the kernels cannot run this shape here.
        """
        super().__init__(shape, kernels)
        if kernels is None or not suits(shape, kernels):
            raise StartupError(
                "--attention-backend native needs the C++ kernels of a CPU, a block size that is a multiple of "
                f"{_UNIT} tokens, a head size that is a multiple of {_UNIT}, at most {_MOST_DIM}, and a model that "
                "does not choose the tokens it attends to; leave it at auto, or choose cpu."
            )
        self._kernels = kernels
        self._types = TYPES[shape.dtype], CACHED.get(shape.stored, 0)

    @property
    def batch_invariant(self) -> bool:
        """See AttentionBackend.batch_invariant."""
        return True

    def allocate_memory(self, num_blocks: int, count: int, row: int) -> list[torch.Tensor]:
        """See AttentionBackend.allocate_memory; [num_blocks, planes, block_size * row] each.

        Blocks come first, so that a huge page holds whole blocks.
        """
        size = (num_blocks, self.shape.planes, self.shape.block_size * row)
        return [zeros_when_touched(size, self.shape.stored) for _ in range(count)]

    def carve(self, memory: torch.Tensor, index: int) -> torch.Tensor:
        """See AttentionBackend.carve; [num_blocks, planes, num_kv_heads, block_size * head_dim]."""
        shape = self.shape
        size = shape.block_size * shape.row
        own = memory.view(shape.stored)[..., index * size : (index + 1) * size]
        return own.unflatten(-1, (shape.num_kv_heads, -1))

    def prepare(self, metadata: AttentionMetadata) -> Prepared:
        """See AttentionBackend.prepare; there is nothing to prepare."""
        return Prepared(metadata)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
        lse: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See AttentionBackend.attend."""
        metadata, shape = prepared.metadata, self.shape
        self.write(key, value, cache, metadata.slot_mapping)
        query, output = _with_heads_together(query), query.new_empty(query.shape)
        sinks = None if options.sinks is None else options.sinks.float()
        self._kernels.attend(
            *self._types, query.data_ptr(), query.stride(0), *self._places(cache), cache.stride(0), cache.stride(2),
            metadata.block_table.data_ptr(), metadata.block_table.stride(0), metadata.query_start_loc.data_ptr(),
            metadata.seq_lens.data_ptr(), len(metadata.seq_lens_host), output.data_ptr(), shape.num_heads,
            shape.num_kv_heads, shape.head_dim, shape.block_size, options.scale, options.sliding_window or 0,
            options.chunked, options.bidirectional, options.softcap or 0.0, None if sinks is None else sinks.data_ptr(),
            None if options.slopes is None else options.slopes.data_ptr(), shape.part.rank, shape.part.size,
            None if lse is None else lse.data_ptr(),
        )  # fmt: skip
        return output

    def write(self, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """See AttentionBackend.write."""
        key, value, shape = _with_heads_together(key), _with_heads_together(value), self.shape
        self._kernels.write_cache(
            *self._types, key.data_ptr(), value.data_ptr(), key.stride(0), value.stride(0), slot_mapping.data_ptr(),
            *self._places(cache), cache.stride(0), cache.stride(2), len(key), shape.num_kv_heads, shape.head_dim,
            shape.block_size,
        )  # fmt: skip

    def _places(self, cache: torch.Tensor) -> tuple[int | None, int]:
        """Addresses of the first block's keys (None if keys are values) and of its values."""
        return None if self.shape.keys_are_values else cache.data_ptr(), cache[:, -1].data_ptr()


def _with_heads_together(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor [tokens, heads, head_dim], copied unless the heads of each token are contiguous."""
    together = tensor.stride(2) == 1 and (tensor.shape[1] == 1 or tensor.stride(1) == tensor.shape[2])
    return tensor if together else tensor.contiguous()
