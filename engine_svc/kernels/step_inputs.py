"""The first kernel of a captured step: looks up tokens, and unpacks block tables to the width that kernels read."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine_svc.kernels.overlap import await_inputs, begins_early

_CHUNK = 256


@triton.jit(do_not_specialize=["num_tokens", "sequences", "rows", "columns"])
def _unpack_kernel(
    known_ptr,
    place_ptr,
    token_id_ptr,
    size_ptr,
    packed_ptr,
    table_ptr,
    num_tokens,
    sequences,
    rows,
    columns,
    CHUNK: tl.constexpr,
):
    """The first programs look up CHUNK tokens each; the others copy one row of a table each."""
    await_inputs()
    program = tl.program_id(0)
    lookups = tl.cdiv(num_tokens, CHUNK)
    if program < lookups:
        token = program * CHUNK + tl.arange(0, CHUNK)
        place = tl.load(place_ptr + token, mask=token < num_tokens, other=-1)
        found = tl.load(known_ptr + place, mask=place >= 0, other=0)
        tl.store(token_id_ptr + token, found, mask=place >= 0)
    else:
        group = (program - lookups) // sequences
        sequence = (program - lookups) % sequences
        count = tl.load(size_ptr)
        width = tl.load(size_ptr + 1)
        if sequence < count:
            source = packed_ptr + (group * count + sequence).to(tl.int64) * width
            target = table_ptr + (group * rows + sequence).to(tl.int64) * columns
            for begin in range(0, width, CHUNK):
                column = begin + tl.arange(0, CHUNK)
                tl.store(target + column, tl.load(source + column, mask=column < width), mask=column < width)


def unpack_inputs(
    known: torch.Tensor,
    places: torch.Tensor,
    token_ids: torch.Tensor,
    table_size: torch.Tensor,
    packed_tables: torch.Tensor,
    tables: torch.Tensor,
    sequences: int,
) -> None:
    """
    Args:
        known: int64 [any], known tokens. places: int64 [tokens], indices into `known`; for -1, nothing is written.
        token_ids: int64 [tokens or more], receives the tokens.
        table_size: int32 [2], rows and columns of each packed table.
        packed_tables: int32, the tables one after the other.
        tables: int32 [groups, rows, columns], receives the tables; entries beyond them are not changed.
        sequences: the most rows that a packed table can have.
    """
    groups, rows, columns = tables.shape
    _unpack_kernel[(triton.cdiv(len(places), _CHUNK) + groups * sequences,)](
        known, places, token_ids, table_size, packed_tables, tables, len(places), sequences, rows, columns,
        CHUNK=_CHUNK, num_warps=4, launch_pdl=begins_early(),
    )  # fmt: skip
