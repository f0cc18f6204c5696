// output[m, n] = sum over k of input[m, k] * weight[n, k] + bias[n], with the weights packed beforehand.
//
// Packed, a weight is panels of PANEL outputs: [panels, steps, PANEL, GROUP]. A panel's outputs stand side by side, so
// that a step over k reads some lines in a row and needs no horizontal sum; groups.h says what a GROUP is. A tile is
// some input rows by a panel (or a part of its width), with all of its sums in registers. With few rows, a panel is read
// once from memory while what follows is prefetched. With many, it is taken in blocks over k that stay in the first-level
// cache, the sums waiting beside them, and blocks of narrow weights are widened once for all rows.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "groups.h"

namespace quire {

constexpr int VECTORS = 4;
constexpr int PANEL = VECTORS * LANES;
constexpr int MOST_ROWS = 6;                       // of a tile
constexpr int WIDTH = REGISTERS == 32 ? 4 : 2;     // vectors of a tile
constexpr int FEW_ROWS = REGISTERS == 32 ? 6 : 3;  // of a tile as wide as a panel
constexpr int64_t ROWS_PER_TASK = 192;
constexpr int64_t BLOCK_BYTES = 32 << 10;
constexpr int64_t AHEAD_BYTES = 4 << 10;
constexpr int64_t LINE = 64;

// What is prefetched meanwhile: some lines for each step.
struct Ahead {
  const char* next;
  int lines;
};

// The operands of a product. `stride` is of input rows, in values; `steps` of one panel, over k.
template <class Type>
struct Operands {
  const typename Type::Input* input;
  int64_t stride;
  const typename Type::Stored* weight;
  int64_t steps;

  const typename Type::Stored* panel(int64_t index) const { return weight + index * steps * PANEL * Type::GROUP; }
};

// One addition to each of a tile's sums. The loop whose values stay in registers is the shorter one.
template <class Type, int ROWS, int W>
inline void add_part(const typename Type::Input* input, int64_t stride, const typename Type::Stored* panel, int part,
                     typename Type::Sum (&sums)[ROWS][W]) {
  if constexpr (ROWS < W) {
    decltype(Type::input(input)) values[ROWS];
#pragma GCC unroll 6
    for (int m = 0; m < ROWS; ++m) values[m] = Type::input(input + m * stride);
#pragma GCC unroll 4
    for (int v = 0; v < W; ++v) {
      auto weight = Type::weight(panel + v * LANES * Type::GROUP, part);
#pragma GCC unroll 6
      for (int m = 0; m < ROWS; ++m) sums[m][v] = Type::add(sums[m][v], values[m], weight);
    }
  } else {
    typename Type::Weight weights[W];
#pragma GCC unroll 4
    for (int v = 0; v < W; ++v) weights[v] = Type::weight(panel + v * LANES * Type::GROUP, part);
#pragma GCC unroll 6
    for (int m = 0; m < ROWS; ++m) {
      auto value = Type::input(input + m * stride);
#pragma GCC unroll 4
      for (int v = 0; v < W; ++v) sums[m][v] = Type::add(sums[m][v], value, weights[v]);
    }
  }
}

// Adds to the sums [ROWS, W * LANES], PANEL values apart, what `steps` steps give; they start from zero if `fresh`.
template <class Type, int ROWS, int W>
inline void multiply(const typename Type::Input* input, int64_t stride, const typename Type::Stored* panel,
                     int64_t steps, bool fresh, Ahead ahead, typename Type::Total* sums) {
  typename Type::Sum local[ROWS][W];  // in registers: nothing else points at them
#pragma GCC unroll 24
  for (int i = 0; i < ROWS * W; ++i) {
    local[i / W][i % W] = typename Type::Sum{};
    if (!fresh) std::memcpy(&local[i / W][i % W], sums + i / W * PANEL + i % W * LANES, sizeof(typename Type::Sum));
  }
  for (int64_t k = 0; k < steps; ++k, panel += PANEL * Type::GROUP) {
    for (int line = 0; line < ahead.lines; ++line, ahead.next += LINE) prefetch_far(ahead.next);
#pragma GCC unroll 2
    for (int part = 0; part < Type::PARTS; ++part, input += Type::GROUP / Type::PARTS)
      add_part<Type, ROWS, W>(input, stride, panel, part, local);
  }
#pragma GCC unroll 24
  for (int i = 0; i < ROWS * W; ++i)
    std::memcpy(sums + i / W * PANEL + i % W * LANES, &local[i / W][i % W], sizeof(typename Type::Sum));
}

// The same of so many rows, up to MOST.
template <class Type, int W, int MOST>
inline void multiply_rows(int64_t rows, const typename Type::Input* input, int64_t stride,
                          const typename Type::Stored* panel, int64_t steps, bool fresh, Ahead ahead,
                          typename Type::Total* sums) {
  if constexpr (MOST > 1)
    if (rows < MOST)
      return multiply_rows<Type, W, MOST - 1>(rows, input, stride, panel, steps, fresh, ahead, sums);
  multiply<Type, MOST, W>(input, stride, panel, steps, fresh, ahead, sums);
}

// Rows in tiles of about the same height, against one block of a panel. The `bytes` that come next are prefetched.
template <class Type>
void multiply_block(const typename Type::Input* input, int64_t rows, int64_t stride,
                    const typename Type::Stored* block, int64_t steps, bool fresh, const char* next, int64_t bytes,
                    typename Type::Total* sums) {
  int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS, all_steps = steps * tiles * (VECTORS / WIDTH);
  int lines = int((bytes / LINE + all_steps - 1) / all_steps);
  const char* end = next + bytes;
  for (int64_t t = 0, row = 0; t < tiles; ++t) {
    int64_t height = (rows - row + tiles - t - 1) / (tiles - t);
    for (int v = 0; v < VECTORS; v += WIDTH, next += steps * lines * LINE)
      multiply_rows<Type, WIDTH, MOST_ROWS>(height, input + row * stride, stride, block + v * LANES * Type::GROUP, steps,
                                            fresh, {next, next < end ? lines : 0}, sums + row * PANEL + v * LANES);
    row += height;
  }
}

// A block of a panel in the type in which many rows are multiplied with it.
template <class Type>
void widen_block(const typename Type::Stored* block, int64_t steps, typename Type::Wide::Stored* to) {
  for (int64_t k = 0; k < steps; ++k, block += PANEL * Type::GROUP)
    for (int part = 0; part < Type::PARTS; ++part)
      for (int v = 0; v < VECTORS; ++v, to += LANES * Type::Wide::GROUP)
        Type::widen(to, Type::weight(block + v * LANES * Type::GROUP, part));
}

// The sums [rows, PANEL] of rows [first, last), at most ROWS_PER_TASK, against one panel.
template <class Type, std::enable_if_t<!Type::TILES, int> = 0>
void sum_panel(const Operands<Type>& call, int64_t first, int64_t last, int64_t index, typename Type::Total* sums) {
  using Wide = typename Type::Wide;
  using WideStored = typename Wide::Stored;
  constexpr int64_t STEP_BYTES = PANEL * Type::GROUP * sizeof(typename Type::Stored);
  constexpr int64_t BLOCK = BLOCK_BYTES / (PANEL * Type::GROUP * sizeof(WideStored));
  const auto *input = call.input + first * call.stride, *panel = call.panel(index);
  if (last - first <= FEW_ROWS) {
    Ahead ahead{(const char*)panel + AHEAD_BYTES, int(STEP_BYTES / LINE)};
    return multiply_rows<Type, VECTORS, FEW_ROWS>(last - first, input, call.stride, panel, call.steps, true, ahead, sums);
  }
  for (int64_t begin = 0; begin < call.steps; begin += BLOCK) {
    int64_t steps = std::min(BLOCK, call.steps - begin);
    const auto *block = panel + begin * PANEL * Type::GROUP, *from = input + begin * Type::GROUP;
    auto next = (const char*)(block + steps * PANEL * Type::GROUP);
    if constexpr (std::is_same_v<Type, Wide>) {
      multiply_block<Type>(from, last - first, call.stride, block, steps, !begin, next, steps * STEP_BYTES, sums);
    } else {
      alignas(LINE) WideStored wide[BLOCK_BYTES / sizeof(WideStored)];
      widen_block<Type>(block, steps, wide);
      multiply_block<Wide>(from, last - first, call.stride, wide, steps * Type::PARTS, !begin, next,
                           steps * STEP_BYTES, sums);
    }
  }
}

}  // namespace quire
