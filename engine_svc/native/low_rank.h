// Products with low-rank adapters: rows, in tiles of one group each, times the two matrices of their group.
#pragma once

#include <cstdint>

namespace quire {

constexpr int LOW_RANK_ROWS = 16;  // rows of a tile; gaps are -1 and come last

}  // namespace quire

extern "C" {

// sums [tiles, LOW_RANK_ROWS, parts, rank] = rows of input, `stride` values apart, times weights [groups / sharing, parts,
// rank, size]. Each matrix uses only as much of rank as ranks [groups / sharing, parts] says; sums beyond are zero. A tile
// of group -1 has no rows.
void quire_shrink(int type, int weight_type, const void* input, int64_t stride, const void* weights,
                  const int32_t* ranks, int64_t parts, int64_t rank, int64_t size, const int32_t* rows,
                  const int32_t* groups, int64_t tiles, int64_t sharing, float* sums);

// Rows of output, `stride` values apart, += sums times weights [groups / sharing, rank, outputs]; part p has the outputs
// from starts[p] to starts[p + 1].
void quire_expand(int type, int weight_type, const float* sums, const void* weights, const int32_t* ranks,
                  const int64_t* starts, int64_t parts, int64_t rank, const int32_t* rows, const int32_t* groups,
                  int64_t tiles, int64_t sharing, void* output, int64_t stride);
}
