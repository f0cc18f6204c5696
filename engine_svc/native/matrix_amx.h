// Sums of a panel by AMX's matrix registers (tiles): 16 rows by 16 outputs, 16 groups at a time.
#pragma once

#include "matrix.h"
#include "tiles.h"

namespace quire {

constexpr int TILE = 16;
constexpr int64_t TILE_PITCH = PANEL * sizeof(int32_t);  // bytes from one step of a panel, or row of sums, to the next

// 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights; of a strip, 5 is of weights too.
inline void shape_strip(int64_t rows) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) shapes.set(tile, tile < 5 ? rows : TILE, LINE);
  shapes.use();
}

// 0, 1 and 4 are of the first 16 rows; 2, 3 and 5 of the others.
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

// Up to 16 rows by a panel: what `chunks` times 16 steps add to the sums. `lines` at each are prefetched.
template <class Type>
void multiply_strip(const typename Type::Input* rows, int64_t stride, const typename Type::Stored* block, int64_t chunks,
                    bool fresh, Ahead ahead, typename Type::Total* sums) {
  auto input = (const char*)rows, weight = (const char*)block;
  int64_t pitch = stride * sizeof(typename Type::Input);
  load_sums(sums, sums + TILE, sums + 2 * TILE, sums + 3 * TILE, TILE_PITCH, fresh);
  for (int64_t k = 0; k < chunks; ++k, input += LINE, weight += TILE * TILE_PITCH) {
    for (int line = 0; line < ahead.lines; ++line, ahead.next += LINE) prefetch_far(ahead.next);
    _tile_loadd(4, input, pitch);
    _tile_loadd(5, weight, TILE_PITCH);
    _tile_loadd(6, weight + LINE, TILE_PITCH);
    _tile_loadd(7, weight + 2 * LINE, TILE_PITCH);
    QUIRE_TILE_PRODUCT(0, 4, 5);
    _tile_loadd(5, weight + 3 * LINE, TILE_PITCH);
    QUIRE_TILE_PRODUCT(1, 4, 6);
    QUIRE_TILE_PRODUCT(2, 4, 7);
    QUIRE_TILE_PRODUCT(3, 4, 5);
  }
  store_sums(sums, sums + TILE, sums + 2 * TILE, sums + 3 * TILE, TILE_PITCH);
}

// 17 to 32 rows by half a panel: what `chunks` times 16 steps add to the sums. `lines` at each are prefetched.
template <class Type>
void multiply_square(const typename Type::Input* input, int64_t stride, const typename Type::Stored* block,
                     int64_t chunks, bool fresh, Ahead ahead, typename Type::Total* sums) {
  int64_t pitch = stride * sizeof(typename Type::Input);
  auto first = (const char*)input, second = first + TILE * pitch, weight = (const char*)block;
  load_sums(sums, sums + TILE, sums + TILE * PANEL, sums + TILE * PANEL + TILE, TILE_PITCH, fresh);
  for (int64_t k = 0; k < chunks; ++k, first += LINE, second += LINE, weight += TILE * TILE_PITCH) {
    for (int line = 0; line < ahead.lines; ++line, ahead.next += LINE) prefetch_far(ahead.next);
    _tile_loadd(6, weight, TILE_PITCH);
    _tile_loadd(4, first, pitch);
    _tile_loadd(7, weight + LINE, TILE_PITCH);
    _tile_loadd(5, second, pitch);
    QUIRE_TILE_PRODUCT(0, 4, 6);
    QUIRE_TILE_PRODUCT(1, 4, 7);
    QUIRE_TILE_PRODUCT(2, 5, 6);
    QUIRE_TILE_PRODUCT(3, 5, 7);
  }
  store_sums(sums, sums + TILE, sums + TILE * PANEL, sums + TILE * PANEL + TILE, TILE_PITCH);
}

#undef QUIRE_TILE_PRODUCT

// Some rows of inputs, and the sums [rows, PANEL] that become theirs block by block.
template <class Type>
struct TileRows {
  const typename Type::Input* input;
  int64_t stride, count, shaped = 0;

  // What a block of `steps` steps, of the inputs from `begin` on, adds.
  void add(int64_t begin, const typename Type::Stored* block, int64_t steps, typename Type::Total* sums) {
    tile_fence();
    int64_t squares = (count + TILE - 1) / (2 * TILE), strip = squares * 2 * TILE;
    for (int half = 0; half < 2; ++half)
      for (int64_t row = 0; row < strip; row += 2 * TILE)
        add_square(row, half, begin, block, steps, {}, sums + row * PANEL);
    if (strip < count) add_strip(strip, begin, block, steps, {}, sums + strip * PANEL);
    tile_fence();
  }

  // What all `steps` steps of a panel add to up to 32 rows, while some lines are prefetched for each 16 of them, or of those
  // of half a panel. Returns what comes behind these lines.
  const char* sum(int64_t row, const typename Type::Stored* panel, int64_t steps, Ahead ahead, typename Type::Total* sums) {
    int64_t bytes = steps / TILE * ahead.lines * LINE;
    tile_fence();
    if (count - row <= TILE) {
      add_strip(row, 0, panel, steps, ahead, sums);
    } else {
      add_square(row, 0, 0, panel, steps, ahead, sums);
      ahead.next += bytes;
      add_square(row, 1, 0, panel, steps, ahead, sums);
    }
    tile_fence();
    return ahead.next + bytes;
  }

 private:
  void add_square(int64_t row, int half, int64_t begin, const typename Type::Stored* block, int64_t steps, Ahead ahead,
                  typename Type::Total* sums) {
    shape(std::min<int64_t>(count - row, 2 * TILE));
    multiply_square<Type>(input + row * stride + begin, stride, block + half * 2 * TILE * Type::GROUP, steps / TILE,
                          !begin, ahead, sums + half * 2 * TILE);
  }

  void add_strip(int64_t row, int64_t begin, const typename Type::Stored* block, int64_t steps, Ahead ahead,
                 typename Type::Total* sums) {
    shape(count - row);
    multiply_strip<Type>(input + row * stride + begin, stride, block, steps / TILE, !begin, ahead, sums);
  }

  void shape(int64_t rows) {
    if (rows != shaped) rows > TILE ? shape_square(rows) : shape_strip(rows);
    shaped = rows;
  }
};

// The sums of rows [first, last) against one panel, up to 32 rows at a time: take(row, end, sums [rows, PANEL]) is called
// while these are in the first-level cache. What lies behind the panel is prefetched meanwhile; by few rows, which take a
// panel no longer than memory does, what comes next in it.
template <class Type, class Take, std::enable_if_t<Type::TILES && !IS_CODED<Type>, int> = 0>
void sum_panel(const Operands<Type>& call, int64_t first, int64_t last, int64_t index, const Take& take) {
  alignas(LINE) typename Type::Total sums[2 * TILE * PANEL];
  TileRows<Type> rows{call.input + first * call.stride, call.stride, last - first};
  int64_t squares = (rows.count + TILE - 1) / (2 * TILE), lines = TILE * TILE_PITCH / LINE;
  const auto* panel = call.panel(index);
  Ahead ahead{(const char*)panel + (squares ? call.panel_bytes : AHEAD_BYTES),
              int(squares ? (lines + 2 * squares - 1) / (2 * squares) : lines)};
  for (int64_t row = 0; row < rows.count; row += 2 * TILE) {
    ahead.next = rows.sum(row, panel, call.steps, ahead, sums);
    take(first + row, std::min(last, first + row + 2 * TILE), sums);
  }
  _tile_release();
}

}  // namespace quire
