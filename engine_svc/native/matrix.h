// output[m, n] = sum over k of input[m, k] * weight[n, k] + bias[n], with the weights packed beforehand.
//
// A packed weight consists of panels of PANEL outputs: [panels, steps, PANEL, GROUP]. A panel's outputs are side by side,
// so that a step over k reads consecutive lines and needs no horizontal sum; for GROUP, see groups.h. Matrix registers load
// TILE steps of TILE outputs at once: [panels, steps / TILE, PANEL / TILE, TILE, TILE, GROUP]. A tile is some input rows by
// a panel (or a part of its width), with all of its sums in registers. With few rows, a panel is read once from memory
// while the following data is prefetched. With many rows, a panel is processed in blocks over k that stay in the
// second-level cache, from which loading weights takes a fraction of the time of multiplying them; sums are kept in memory
// between blocks. Blocks of narrow weights are converted once for all rows.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "groups.h"

namespace quire {

constexpr int VECTORS = 4;
constexpr int PANEL = VECTORS * LANES;
// Rows and width in vectors of a tile whose sums and weights are all in registers.
constexpr int FEW_ROWS = REGISTERS == 32 ? 6 : 3;                         // a tile as wide as a panel
constexpr int MOST_ROWS = 6, WIDTH = REGISTERS == 32 ? 4 : 2;             // one of several tiles
constexpr int TALL_ROWS = REGISTERS == 32 ? 12 : 6, TALL_WIDTH = 2;       // a single tile, if that avoids converting twice
// Bytes of a block: two of them fit in a second-level cache. With few tiles, which wait for memory, blocks are short, so
// that the first data arrives soon.
constexpr int64_t BLOCK_BYTES = 128 << 10, SHORT_BLOCK_BYTES = 16 << 10;
constexpr int64_t FEW_TILES = 4;
constexpr int64_t AHEAD_BYTES = 4 << 10;
constexpr int64_t LINE = 64;
constexpr int64_t TILE = 16;  // rows of a matrix register

// Prefetches some lines for each step.
struct Ahead {
  const char* next;
  int lines;

  void fetch() {
    for (int line = 0; line < lines; ++line) fetch_line();
  }

  // Calls `step` so many times, and fetches before each. Loops that fetch nothing or one line a step have fewer
  // instructions: they are a fifth faster on cores that other threads use at the same time.
  template <class Step>
  [[gnu::always_inline]] void fetch_with(int64_t steps, Step step) {
    if (lines == 0) {
      for (; steps > 0; --steps) step();
    } else if (lines == 1) {
      for (; steps > 0; --steps) fetch_line(), step();
    } else {
      for (; steps > 0; --steps) fetch(), step();
    }
  }

 private:
  [[gnu::always_inline]] void fetch_line() { prefetch_far(next), next += LINE; }
};

struct CodedForm;
template <class Wide>
struct Coded;  // see coded.h
template <class Type>
constexpr bool IS_CODED = false;
template <class Wide>
constexpr bool IS_CODED<Coded<Wide>> = true;

template <class Wide>
struct Compressed;  // see compressed.h
template <class Type>
constexpr bool IS_COMPRESSED = false;
template <class Wide>
constexpr bool IS_COMPRESSED<Compressed<Wide>> = true;

// The most rows of a task: as many as keep their sums in a cache; more for coded weights and tiles, and most for
// compressed weights that tiles multiply, as each task decompresses them.
template <class Type>
constexpr int64_t ROWS = IS_COMPRESSED<Type> && Type::TILES ? 512 : IS_CODED<Type> || Type::TILES ? 256 : 192;

// The operands of a product. `stride` is of input rows, in values; `steps` of one panel, over k.
template <class Type>
struct Operands {
  const typename Type::Input* input;
  int64_t stride;
  const char* weight;
  int64_t steps, panel_bytes;
  const CodedForm* form = nullptr;  // of coded weights
  const float* input_sums = nullptr;  // [spans, rows]: see coded_spans.h
  int64_t rows = 0;                   // of input_sums

  const typename Type::Stored* panel(int64_t index) const {
    return (const typename Type::Stored*)(weight + index * panel_bytes);
  }
};

// The index within a panel of the group of a step and an output.
template <class Type>
constexpr int64_t group_at(int64_t step, int64_t output) {
  if constexpr (!Type::TILES) return step * PANEL + output;
  return (step / TILE * PANEL + output / TILE * TILE + step % TILE) * TILE + output % TILE;
}

// Where to store a block of converted weights; null: nowhere.
template <class Type>
using Widening = typename Type::Wide::Stored*;

// One addition to each of a tile's sums. The inner loop is the one whose values stay in registers.
template <class Type, int ROWS, int W, bool KEEP>
inline void add_part(const typename Type::Input* input, int64_t stride, const typename Type::Stored* panel, int part,
                     Widening<Type> wide, typename Type::Sum (&sums)[ROWS][W]) {
  if constexpr (ROWS < W) {
    decltype(Type::input(input)) values[ROWS];
#pragma GCC unroll 12
    for (int m = 0; m < ROWS; ++m) values[m] = Type::input(input + m * stride);
#pragma GCC unroll 4
    for (int v = 0; v < W; ++v) {
      auto weight = Type::weight(panel + v * LANES * Type::GROUP, part);
      if constexpr (KEEP) Type::widen(wide + v * LANES * Type::Wide::GROUP, weight);
#pragma GCC unroll 12
      for (int m = 0; m < ROWS; ++m) sums[m][v] = Type::add(sums[m][v], values[m], weight);
    }
  } else {
    typename Type::Weight weights[W];
#pragma GCC unroll 4
    for (int v = 0; v < W; ++v) {
      weights[v] = Type::weight(panel + v * LANES * Type::GROUP, part);
      if constexpr (KEEP) Type::widen(wide + v * LANES * Type::Wide::GROUP, weights[v]);
    }
#pragma GCC unroll 12
    for (int m = 0; m < ROWS; ++m) {
      auto value = Type::input(input + m * stride);
#pragma GCC unroll 4
      for (int v = 0; v < W; ++v) sums[m][v] = Type::add(sums[m][v], value, weights[v]);
    }
  }
}

// The arguments of `multiply`: input rows, `steps` steps of a panel, and sums [rows, W * LANES] whose rows are PANEL values
// apart, and which start from zero if `fresh`.
template <class Type>
struct Part {
  const typename Type::Input* input;
  int64_t stride;
  const typename Type::Stored* panel;
  int64_t steps;
  bool fresh;
  typename Type::Total* sums;
  Ahead ahead;
  Widening<Type> wide;
};

// Not inlined, so that its loop has all registers.
template <class Type, int ROWS, int W, bool KEEP>
[[gnu::noinline]] void multiply(Part<Type> part) {
  constexpr size_t BYTES = sizeof(typename Type::Sum);
  typename Type::Sum local[ROWS][W];  // in registers: nothing else points at them
#pragma GCC unroll 24
  for (int i = 0; i < ROWS * W; ++i) {
    local[i / W][i % W] = typename Type::Sum{};
    if (!part.fresh) std::memcpy(&local[i / W][i % W], part.sums + i / W * PANEL + i % W * LANES, BYTES);
  }
  // What the loop changes is in captured copies, and so in registers.
  auto add_step = [&local, input = part.input, stride = part.stride, panel = part.panel,
                   wide = part.wide]() mutable __attribute__((always_inline)) {
#pragma GCC unroll 2
    for (int p = 0; p < Type::PARTS; ++p) {
      add_part<Type, ROWS, W, KEEP>(input, stride, panel, p, wide, local);
      input += Type::GROUP / Type::PARTS;
      if constexpr (KEEP) wide += PANEL * Type::Wide::GROUP;
    }
    panel += PANEL * Type::GROUP;
  };
  part.ahead.fetch_with(part.steps, add_step);
#pragma GCC unroll 24
  for (int i = 0; i < ROWS * W; ++i)
    std::memcpy(part.sums + i / W * PANEL + i % W * LANES, &local[i / W][i % W], BYTES);
}

// The same of so many rows, up to MOST.
template <class Type, int W, bool KEEP, int MOST>
inline void multiply_rows(int64_t rows, const Part<Type>& part) {
  if constexpr (MOST > 1)
    if (rows < MOST) return multiply_rows<Type, W, KEEP, MOST - 1>(rows, part);
  multiply<Type, MOST, W, KEEP>(part);
}

// A tile, in passes over its panel's width; each prefetches its own share.
template <class Type, int W, bool KEEP, int MOST>
void multiply_tile(int64_t rows, Part<Type> part) {
  for (int v = 0; v < VECTORS; v += W) {
    multiply_rows<Type, W, KEEP, MOST>(rows, part);
    part.panel += W * LANES * Type::GROUP, part.sums += W * LANES;
    part.ahead.next += part.steps * part.ahead.lines * LINE;
    if constexpr (KEEP) part.wide += W * LANES * Type::Wide::GROUP;
  }
}

// Multiplies rows in tiles of about equal height with one block of a panel, and prefetches lines before `end`.
template <class Type>
void multiply_tiles(int64_t rows, Part<Type> part, const char* end) {
  for (int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS; tiles > 0; --tiles) {
    int64_t height = (rows + tiles - 1) / tiles;
    if (part.ahead.next >= end) part.ahead.lines = 0;
    multiply_tile<Type, WIDTH, false, MOST_ROWS>(height, part);
    part.ahead.next += VECTORS / WIDTH * part.steps * part.ahead.lines * LINE;
    part.input += height * part.stride, part.sums += height * PANEL, rows -= height;
  }
}

// The first tile stores the converted weights for the others. The same number of following bytes is prefetched.
template <class Type>
void multiply_block(int64_t rows, Part<Type> part) {
  using Wide = typename Type::Wide;
  constexpr bool SAME = std::is_same_v<Type, Wide>;
  constexpr int64_t LINES = PANEL * Type::GROUP * sizeof(typename Type::Stored) / LINE;  // of a step
  constexpr int64_t PASSES = VECTORS / WIDTH, LATER_STEPS = SAME ? 1 : Type::PARTS;      // for one of the first tile
  part.ahead.next = (const char*)(part.panel + part.steps * PANEL * Type::GROUP);
  const char* end = part.ahead.next + part.steps * LINES * LINE;
  int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS, height = (rows + tiles - 1) / tiles;
  int64_t rounds = (1 + (tiles - 1) * LATER_STEPS) * PASSES;
  part.ahead.lines = int((LINES + rounds - 1) / rounds);
  if constexpr (SAME) {
    multiply_tiles(rows, part, end);
  } else if (rows <= TALL_ROWS) {
    part.ahead.lines = int(LINES * TALL_WIDTH / VECTORS);
    multiply_tile<Type, TALL_WIDTH, false, TALL_ROWS>(rows, part);
  } else {
    alignas(LINE) typename Wide::Stored wide[BLOCK_BYTES / sizeof(typename Wide::Stored)];
    part.wide = wide;
    multiply_tile<Type, WIDTH, true, MOST_ROWS>(height, part);
    part.ahead.next += PASSES * part.steps * part.ahead.lines * LINE;
    Part<Wide> later{part.input + height * part.stride, part.stride, wide, part.steps * LATER_STEPS, part.fresh,
                     part.sums + height * PANEL, part.ahead, nullptr};
    multiply_tiles(rows - height, later, end);
  }
}

// The sums [rows, PANEL] of rows [first, last), at most ROWS, against one panel.
template <class Type, std::enable_if_t<!Type::TILES && !IS_CODED<Type>, int> = 0>
void sum_panel(const Operands<Type>& call, int64_t first, int64_t last, int64_t index, typename Type::Total* sums) {
  constexpr int64_t STEP_BYTES = PANEL * Type::GROUP * sizeof(typename Type::Stored);
  constexpr int64_t WIDE_STEP_BYTES = PANEL * Type::GROUP * sizeof(typename Type::Wide::Stored);
  Part<Type> part{call.input + first * call.stride, call.stride, call.panel(index), call.steps, true, sums};
  if (last - first <= FEW_ROWS) {
    part.ahead = {(const char*)part.panel + AHEAD_BYTES, int(STEP_BYTES / LINE)};
    return multiply_rows<Type, VECTORS, false, FEW_ROWS>(last - first, part);
  }
  bool few = last - first <= FEW_TILES * MOST_ROWS;
  int64_t left = call.steps, most = (few ? SHORT_BLOCK_BYTES : BLOCK_BYTES) / WIDE_STEP_BYTES;
  for (int64_t blocks = (left + most - 1) / most; blocks > 0; --blocks, left -= part.steps) {  // of about the same length
    part.steps = (left + blocks - 1) / blocks;
    multiply_block(last - first, part);
    part.input += part.steps * Type::GROUP, part.panel += part.steps * PANEL * Type::GROUP, part.fresh = false;
  }
}

}  // namespace quire
