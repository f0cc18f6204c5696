// Sums of a panel of compressed weights by AMX's matrix registers (tiles).
//
// With up to 32 rows, whose sums stay in tiles for all steps of a panel or of its half, TILE steps are decompressed while
// the previous ones are multiplied. With more rows, a block is decompressed first, and then multiplied as in matrix_amx.h.
#pragma once

#include "compressed.h"
#include "matrix_amx.h"

namespace quire {

constexpr int64_t WIDE_TILES = TILE * STEP_VALUES;  // decompressed values of TILE steps
// How far ahead to prefetch: a multiple of TILE steps, so that a pass over half a panel prefetches its own half.
constexpr int64_t COMPRESSED_AHEAD_BYTES = 2 * TILE * COMPRESSED_STEP;

// Decompresses `count` steps, and prefetches as many.
template <bool FETCHES>
[[gnu::always_inline]] inline void decompress(Steps& panel, int64_t count, bf16* to) {
  for (int64_t i = 0; i < count; ++i, to += STEP_VALUES) {
    for (int64_t line = 0; FETCHES && line < COMPRESSED_STEP; line += LINE)
      prefetch_far(panel.ahead(COMPRESSED_AHEAD_BYTES + line));
    Ints groups[VECTORS];
    panel.read<0>(groups);
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) store_ints((int32_t*)to + v * LANES, groups[v]);
  }
}

// The sums of up to 16 rows and a panel, for tiles of shape_strip.
inline void sum_compressed_strip(const bf16* input, int64_t stride, int64_t chunks, Steps panel, float* sums) {
  alignas(LINE) bf16 wide[2][WIDE_TILES];
  StayAwake awake;
  int64_t pitch = stride * sizeof(bf16);
  load_sums(sums, sums, sums, sums, SUMS_PITCH, true);
  decompress<true>(panel, TILE, wide[0]);
  for (int64_t k = 0; k < chunks; ++k, input += TILE * Bf16Groups::GROUP) {
    auto weight = (const char*)wide[k % 2];
    if (k + 1 < chunks) decompress<true>(panel, TILE, wide[1 - k % 2]);
    tile_fence();
    _tile_loadd(4, input, pitch);
    _tile_loadd(5, weight, LINE);
    _tile_loadd(6, weight + TILE_BYTES, LINE);
    _tile_loadd(7, weight + 2 * TILE_BYTES, LINE);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, weight + 3 * TILE_BYTES, LINE);
    _tile_dpbf16ps(1, 4, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 4, 5);
    if (k % AWAKE_STEPS == AWAKE_STEPS - 1) awake.store();
  }
  store_sums(sums, sums + TILE, sums + 2 * TILE, sums + 3 * TILE, SUMS_PITCH);
  tile_fence();
}

// The sums of 17 to 32 rows and the half of a panel that its next step begins, for tiles of shape_square.
inline void sum_compressed_square(const bf16* first, int64_t stride, int64_t chunks, Steps panel, float* sums) {
  alignas(LINE) bf16 wide[2][WIDE_TILES / 2];
  StayAwake awake;
  int64_t pitch = stride * sizeof(bf16);
  const bf16* second = first + TILE * stride;
  load_sums(sums, sums, sums, sums, SUMS_PITCH, true);
  decompress<true>(panel, TILE / 2, wide[0]);
  for (int64_t k = 0; k < chunks; ++k, first += TILE * Bf16Groups::GROUP, second += TILE * Bf16Groups::GROUP) {
    auto weight = (const char*)wide[k % 2];
    if (k + 1 < chunks) {
      panel.skip(TILE / 2);
      decompress<true>(panel, TILE / 2, wide[1 - k % 2]);
    }
    tile_fence();
    _tile_loadd(6, weight, LINE);
    _tile_loadd(4, first, pitch);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weight + TILE_BYTES, LINE);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, second, pitch);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    if (k % AWAKE_STEPS == AWAKE_STEPS - 1) awake.store();
  }
  store_sums(sums, sums + TILE, sums + TILE * PANEL, sums + TILE * PANEL + TILE, SUMS_PITCH);
  tile_fence();
}

// The sums of more rows; see sum_panel in matrix_amx.h. The next block is prefetched while this one is multiplied.
template <class Type, class Take>
void sum_decompressed(const Operands<Compressed<Type>>& call, int64_t first, int64_t last, Steps panel, const Take& take) {
  alignas(LINE) bf16 wide[TILE_BLOCK_STEPS * STEP_VALUES];
  alignas(LINE) float sums[ROWS<Compressed<Type>> * PANEL];
  TileRows<Type> rows{call.input + first * call.stride, call.stride, last - first};
  constexpr int64_t LINES = TILE * COMPRESSED_STEP / LINE / LOADS;  // of TILE steps, for each load
  for (int64_t step = 0, steps; step < call.steps; step += steps) {
    steps = std::min(TILE_BLOCK_STEPS, call.steps - step);
    decompress<false>(panel, steps, wide);
    Ahead ahead{panel.ahead(0), int((LINES + rows.walks() - 1) / rows.walks())};
    for (int64_t row = 0; row < rows.count; row += 2 * TILE) {
      auto* of_rows = sums + row * PANEL;
      rows.add(row, step * Type::GROUP, wide, steps, ahead, of_rows);
      if (step + steps == call.steps) take(first + row, std::min(last, first + row + 2 * TILE), of_rows);
    }
  }
}

// See sum_panel in matrix_amx.h.
template <class Type, class Take, std::enable_if_t<Type::TILES, int> = 0>
void sum_panel(const Operands<Compressed<Type>>& call, int64_t first, int64_t last, int64_t index, const Take& take) {
  Steps panel(call.weight, call.panel(index));
  const auto* input = call.input + first * call.stride;
  int64_t rows = last - first, chunks = call.steps / TILE;
  alignas(LINE) float sums[2 * TILE * PANEL];
  if (rows <= TILE) {
    shape_strip(rows);
    sum_compressed_strip(input, call.stride, chunks, panel, sums);
    take(first, last, sums);
  } else if (rows <= 2 * TILE) {
    shape_square(rows);
    sum_compressed_square(input, call.stride, chunks, panel, sums);
    panel.skip(TILE / 2);
    sum_compressed_square(input, call.stride, chunks, panel, sums + 2 * TILE);
    take(first, last, sums);
  } else {
    sum_decompressed(call, first, last, panel, take);
  }
  _tile_release();
}

}  // namespace quire
