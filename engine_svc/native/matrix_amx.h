// Sums of a panel by AMX's matrix registers (tiles): 16 rows by 16 outputs, 16 groups at a time.
//
// A panel is processed in blocks over k, each with all rows, 32 rows by half a panel at a time; sums are kept in memory
// between blocks. Meanwhile the next block is prefetched into the second-level cache, a few lines at each load: of a burst
// of prefetches, some would be dropped, and the others would delay loads from that cache.
#pragma once

#include "matrix.h"
#include "tiles.h"

namespace quire {

constexpr int64_t TILE_BYTES = TILE * LINE;
constexpr int64_t SUMS_PITCH = PANEL * sizeof(int32_t);  // bytes from one row of sums to the next
constexpr int64_t LOADS = PANEL / TILE;                  // of weights, at each TILE steps
constexpr int64_t AWAKE_STEPS = 8;                       // times TILE
constexpr int64_t TILE_BLOCK_STEPS = 16 * TILE, FEW_AHEAD_BYTES = 2 * TILE_BYTES;

// Tiles 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights; with a strip, 5 is weights too.
inline void shape_strip(int64_t rows) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) shapes.set(tile, tile < 5 ? rows : TILE, LINE);
  shapes.use();
}

// Tiles 0, 1 and 4 are for the first 16 rows; 2, 3 and 5 for the others.
inline void shape_square(int64_t rows) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) shapes.set(tile, TILE, LINE);
  for (int tile : {2, 3, 5}) shapes.set(tile, rows - TILE, LINE);
  shapes.use();
}

#define QUIRE_TILE_PRODUCT(sum, input, weight)     \
  if constexpr (std::is_same_v<Type, Bf16Groups>) \
    _tile_dpbf16ps(sum, input, weight);           \
  else                                            \
    _tile_dpbssd(sum, input, weight)

// Up to 16 rows by a panel: adds the products of `chunks` times 16 steps to the sums, and prefetches lines of `ahead`.
template <class Type>
void multiply_strip(const typename Type::Input* rows, int64_t stride, const typename Type::Stored* block, int64_t chunks,
                    bool fresh, Ahead& ahead, typename Type::Total* sums) {
  StayAwake awake;
  auto input = (const char*)rows, weight = (const char*)block;
  int64_t pitch = stride * sizeof(typename Type::Input);
  load_sums(sums, sums + TILE, sums + 2 * TILE, sums + 3 * TILE, SUMS_PITCH, fresh);
  for (int64_t k = 0; k < chunks; ++k, input += LINE, weight += LOADS * TILE_BYTES) {
    _tile_loadd(4, input, pitch);
    _tile_loadd(5, weight, LINE);
    ahead.fetch();
    _tile_loadd(6, weight + TILE_BYTES, LINE);
    ahead.fetch();
    _tile_loadd(7, weight + 2 * TILE_BYTES, LINE);
    ahead.fetch();
    QUIRE_TILE_PRODUCT(0, 4, 5);
    _tile_loadd(5, weight + 3 * TILE_BYTES, LINE);
    ahead.fetch();
    QUIRE_TILE_PRODUCT(1, 4, 6);
    QUIRE_TILE_PRODUCT(2, 4, 7);
    QUIRE_TILE_PRODUCT(3, 4, 5);
    if (k % AWAKE_STEPS == AWAKE_STEPS - 1) awake.store();
  }
  store_sums(sums, sums + TILE, sums + 2 * TILE, sums + 3 * TILE, SUMS_PITCH);
}

// 17 to 32 rows by half a panel: adds the products of `chunks` times 16 steps to the sums, and prefetches lines of `ahead`.
template <class Type>
void multiply_square(const typename Type::Input* input, int64_t stride, const typename Type::Stored* block,
                     int64_t chunks, bool fresh, Ahead& ahead, typename Type::Total* sums) {
  StayAwake awake;
  int64_t pitch = stride * sizeof(typename Type::Input);
  auto first = (const char*)input, second = first + TILE * pitch, weight = (const char*)block;
  load_sums(sums, sums + TILE, sums + TILE * PANEL, sums + TILE * PANEL + TILE, SUMS_PITCH, fresh);
  for (int64_t k = 0; k < chunks; ++k, first += LINE, second += LINE, weight += LOADS * TILE_BYTES) {
    _tile_loadd(6, weight, LINE);
    ahead.fetch();
    _tile_loadd(4, first, pitch);
    ahead.fetch();
    QUIRE_TILE_PRODUCT(0, 4, 6);
    _tile_loadd(7, weight + TILE_BYTES, LINE);
    ahead.fetch();
    QUIRE_TILE_PRODUCT(1, 4, 7);
    _tile_loadd(5, second, pitch);
    ahead.fetch();
    QUIRE_TILE_PRODUCT(2, 5, 6);
    QUIRE_TILE_PRODUCT(3, 5, 7);
    if (k % AWAKE_STEPS == AWAKE_STEPS - 1) awake.store();
  }
  store_sums(sums, sums + TILE, sums + TILE * PANEL, sums + TILE * PANEL + TILE, SUMS_PITCH);
}

#undef QUIRE_TILE_PRODUCT

// Some rows of inputs, and their sums [rows, PANEL], which are updated block by block.
template <class Type>
struct TileRows {
  const typename Type::Input* input;
  int64_t stride, count, shaped = 0;

  // How many times their products go through a panel.
  int64_t walks() const { return count / (2 * TILE) * 2 + (count % (2 * TILE) > TILE ? 2 : count % (2 * TILE) > 0); }

  // Adds the products of a block of `steps` steps, of the inputs from `begin` on, to the sums [32, PANEL] of up to 32 rows.
  void add(int64_t row, int64_t begin, const typename Type::Stored* block, int64_t steps, Ahead& ahead,
           typename Type::Total* sums) {
    tile_fence();
    int64_t rows = std::min<int64_t>(count - row, 2 * TILE);
    if (rows != shaped) rows > TILE ? shape_square(rows) : shape_strip(rows);
    shaped = rows;
    const auto* from = input + row * stride + begin;
    if (rows <= TILE) {
      multiply_strip<Type>(from, stride, block, steps / TILE, !begin, ahead, sums);
    } else {
      for (int half = 0; half < 2; ++half)
        multiply_square<Type>(from, stride, block + half * 2 * TILE * TILE * Type::GROUP, steps / TILE, !begin, ahead,
                              sums + half * 2 * TILE);
    }
    tile_fence();
  }
};

// The sums of rows [first, last), at most ROWS, against one panel. Calls take(row, end, sums [rows, PANEL]) for up to 32
// rows at a time, while these sums are in the first-level cache.
template <class Type, class Take, std::enable_if_t<Type::TILES && !IS_CODED<Type>, int> = 0>
void sum_panel(const Operands<Type>& call, int64_t first, int64_t last, int64_t index, const Take& take) {
  alignas(LINE) typename Type::Total sums[ROWS<Type> * PANEL];
  TileRows<Type> rows{call.input + first * call.stride, call.stride, last - first};
  const auto* block = call.panel(index);
  // How far ahead to prefetch: with few rows, which need no more time for a block than memory does, only a little.
  int64_t distance = rows.count > TILE ? TILE_BLOCK_STEPS * LINE * LOADS : FEW_AHEAD_BYTES;
  for (int64_t step = 0, steps; step < call.steps; step += steps, block += steps * PANEL * Type::GROUP) {
    steps = std::min(TILE_BLOCK_STEPS, call.steps - step);
    Ahead ahead{(const char*)block + distance, int((TILE + rows.walks() - 1) / rows.walks())};
    for (int64_t row = 0; row < rows.count; row += 2 * TILE) {
      auto* of_rows = sums + row * PANEL;
      rows.add(row, step * Type::GROUP, block, steps, ahead, of_rows);
      if (step + steps == call.steps) take(first + row, std::min(last, first + row + 2 * TILE), of_rows);
    }
  }
  _tile_release();
}

}  // namespace quire
