// The two products of attention, of a few rows with the cache: scores, which are queries times keys, and the weighted sums
// of values.
//
// The cache's operand is in up to SEGMENTS places, with some steps along k in each, `stride` apart; a step has a group for
// each output. Every output is a single sum, in order, whatever is computed beside it.
#pragma once

#include <algorithm>
#include <cstring>

#include "groups.h"
#include "tiles.h"

namespace quire {

constexpr int SEGMENTS = 16;
constexpr int MOST_VECTORS = 4;  // of LANES outputs, at a time
constexpr int TILE_ROWS = 16;    // rows of a matrix register
constexpr int FULL_ROWS = 6;     // rows whose sums fit in the vector registers
constexpr int FETCHING_STEPS = 2;  // steps per prefetch; products have a multiple of 8 steps, so prefetches are even
constexpr int MOST_HEADS = 8;    // heads whose keys and values are prefetched together
constexpr int MOST_RUNS = 2 * SEGMENTS * MOST_HEADS;

// Lines that are needed soon. They are prefetched a few at a time during computation, in the order of their addresses, so
// that the hardware prefetcher continues consecutive lines.
class Wanted {
 public:
  // Starts over; `pace` lines are prefetched for each line that is computed with.
  void begin(int64_t pace) { number = place = 0, this->pace = pace; }

  // Adds `count` lines, `stride` bytes apart; at most MOST_RUNS times.
  void add(const void* first, int64_t stride, int64_t count) { runs[number++] = {(const char*)first, stride, count}; }

  void fetch(int64_t computed) {
    int64_t lines = computed * pace;
    while (lines > 0 && place < number) {
      Run& run = runs[place];
      int64_t count = std::min(lines, run.count), stride = run.stride;
      const char* next = run.next;
      for (int64_t i = 0; i < count; ++i, next += stride) prefetch_far(next);
      run.next = next, run.count -= count, lines -= count;
      if (!run.count) ++place;
    }
  }

 private:
  struct Run {
    const char* next;
    int64_t stride, count;
  };

  Run runs[MOST_RUNS];
  int number = 0, place = 0;
  int64_t pace = 1;
};

template <class Type>
struct Product {
  using Stored = typename Type::Stored;
  const typename Type::Input* input;
  int64_t input_stride;                        // between rows, in values
  const Stored* from[SEGMENTS][MOST_VECTORS];  // for each vector of outputs
  int segments;
  int64_t steps[SEGMENTS], stride;  // stride in values
  float* output;          // vectors of outputs are side by side
  int64_t output_stride;  // between rows
  bool fresh;             // overwrites the output instead of adding to it
  Wanted* wanted;         // lines to prefetch in proportion to those read
};

// The best number of rows to take at a time.
template <class Type>
constexpr int most_rows() {
  return Type::TILES ? TILE_ROWS : FULL_ROWS;
}

// How many of `vectors` vectors to take at a time, with `rows` rows.
template <class Type>
inline int most_vectors(int64_t rows, int64_t vectors) {
  int most = Type::TILES || REGISTERS == 32 || rows <= 2 ? MOST_VECTORS : 2;
  if (Type::TILES && vectors < most) return int(vectors);
  return vectors >= most ? most : vectors >= 2 ? 2 : 1;
}

template <class Type, int ROWS, int W>
void multiply(const Product<Type>& product) {
  constexpr int PART = Type::GROUP / Type::PARTS;
  constexpr int64_t STEP_BYTES = LANES * Type::GROUP * sizeof(typename Type::Stored);  // of a vector
  typename Type::Sum sums[ROWS][W];
#pragma GCC unroll 24
  for (int i = 0; i < ROWS * W; ++i) {
    const float* before = product.output + i / W * product.output_stride + i % W * LANES;
    sums[i / W][i % W] = product.fresh ? zero() : load(before);
  }
  const auto* input = product.input;
  int64_t input_stride = product.input_stride;
  for (int s = 0; s < product.segments; ++s) {
    const auto* const* from = product.from[s];
    int64_t fetched = 0, end = product.steps[s] * product.stride, stride = product.stride;
    for (int64_t at = 0; at < end; at += stride) {
      if (at == fetched) product.wanted->fetch(W * FETCHING_STEPS * STEP_BYTES / 64), fetched += FETCHING_STEPS * stride;
#pragma GCC unroll 2
      for (int part = 0; part < Type::PARTS; ++part, input += PART) {
        typename Type::Weight weight[W];
#pragma GCC unroll 4
        for (int v = 0; v < W; ++v) weight[v] = Type::weight(from[v] + at, part);
#pragma GCC unroll 6
        for (int m = 0; m < ROWS; ++m) {
          auto value = Type::input(input + m * input_stride);
#pragma GCC unroll 4
          for (int v = 0; v < W; ++v) sums[m][v] = Type::add(sums[m][v], value, weight[v]);
        }
      }
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < ROWS * W; ++i)
    store(product.output + i / W * product.output_stride + i % W * LANES, sums[i / W][i % W]);
}

// The same for `rows` rows, up to MOST.
template <class Type, int W, int MOST>
void multiply_rows(const Product<Type>& product, int64_t rows) {
  if constexpr (MOST > 1)
    if (rows < MOST) return multiply_rows<Type, W, MOST - 1>(product, rows);
  multiply<Type, MOST, W>(product);
}

#ifdef __AMX_TILE__
// Tiles 0 to 3 hold sums; 4 and 6 inputs and weights of 16 steps, 5 and 7 of 8 steps.
inline void shape_tiles(int64_t rows) {
  TileShapes shapes;
  for (int tile = 0; tile < 4; ++tile) shapes.set(tile, rows, 64);
  shapes.set(4, rows, 64), shapes.set(5, rows, 32), shapes.set(6, 16, 64), shapes.set(7, 8, 64);
  shapes.use();
}

template <class Type>
void multiply_tiles(const Product<Type>& product, int64_t vectors) {
  float* output = product.output;
  int64_t row_bytes = product.output_stride * 4, input_bytes = product.input_stride * 2, bytes = product.stride * 2;
  const auto* input = product.input;
  tile_fence();
  if (product.fresh) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, output, row_bytes);
    if (vectors > 1) _tile_loadd(1, output + LANES, row_bytes);
    if (vectors > 2) _tile_loadd(2, output + 2 * LANES, row_bytes);
    if (vectors > 3) _tile_loadd(3, output + 3 * LANES, row_bytes);
  }
  for (int s = 0; s < product.segments; ++s) {
    const auto* const* from = product.from[s];
    for (int64_t k = 0, at = 0; k < product.steps[s];) {
      int64_t count = product.steps[s] - k >= 16 ? 16 : 8;
      product.wanted->fetch(count * vectors);
      if (count == 16) {
        _tile_loadd(4, input, input_bytes);
        _tile_loadd(6, from[0] + at, bytes);
        _tile_dpbf16ps(0, 4, 6);
        if (vectors > 1) { _tile_loadd(6, from[1] + at, bytes); _tile_dpbf16ps(1, 4, 6); }
        if (vectors > 2) { _tile_loadd(6, from[2] + at, bytes); _tile_dpbf16ps(2, 4, 6); }
        if (vectors > 3) { _tile_loadd(6, from[3] + at, bytes); _tile_dpbf16ps(3, 4, 6); }
      } else {
        _tile_loadd(5, input, input_bytes);
        _tile_loadd(7, from[0] + at, bytes);
        _tile_dpbf16ps(0, 5, 7);
        if (vectors > 1) { _tile_loadd(7, from[1] + at, bytes); _tile_dpbf16ps(1, 5, 7); }
        if (vectors > 2) { _tile_loadd(7, from[2] + at, bytes); _tile_dpbf16ps(2, 5, 7); }
        if (vectors > 3) { _tile_loadd(7, from[3] + at, bytes); _tile_dpbf16ps(3, 5, 7); }
      }
      k += count, at += count * product.stride, input += count * Type::GROUP;
    }
  }
  _tile_stored(0, output, row_bytes);
  if (vectors > 1) _tile_stored(1, output + LANES, row_bytes);
  if (vectors > 2) _tile_stored(2, output + 2 * LANES, row_bytes);
  if (vectors > 3) _tile_stored(3, output + 3 * LANES, row_bytes);
  tile_fence();
}
#endif

// Computes a product of at most most_rows rows and most_vectors vectors of outputs. Tiles must have been shaped for them.
template <class Type>
void multiply(const Product<Type>& product, int64_t rows, int64_t vectors) {
#ifdef __AMX_TILE__
  if constexpr (Type::TILES) return multiply_tiles(product, vectors);
#endif
  if constexpr (!Type::TILES) {
    constexpr int WIDE_ROWS = REGISTERS == 32 ? FULL_ROWS : 2;
    if (vectors == 1) return multiply_rows<Type, 1, FULL_ROWS>(product, rows);
    if (vectors == 2) return multiply_rows<Type, 2, FULL_ROWS>(product, rows);
    return multiply_rows<Type, 4, WIDE_ROWS>(product, rows);
  }
}

}  // namespace quire
