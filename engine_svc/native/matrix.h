// output[m, n] = sum over k of input[m, k] * weight[n, k] + bias[n], with the weights packed beforehand.
//
// Packed, a weight is panels of 64 outputs. In a panel, the 64 outputs' values for a few consecutive k stand together
// (2 of bfloat16, 4 of int8: what one dot-product instruction eats), so that a step over k reads 256 bytes in a row and
// needs no horizontal sum. A tile is up to 6 input rows by a panel: 24 sums in registers. With few rows the panel is
// read once from memory while the next one is prefetched; with many it stays in the second-level cache.
#pragma once

#include <algorithm>

#include "common.h"

namespace quire_dot {

constexpr int VECTORS = 4;
constexpr int PANEL = VECTORS * LANES;
constexpr int MOST_ROWS = 6;
constexpr int64_t ROWS_PER_TASK = 192;
constexpr int64_t STEPS_PER_BLOCK = 128;  // 32 KiB of a panel
constexpr int64_t BLOCKED_TILES = 6;
constexpr int LINE = 64;

// How values of a packed type are multiplied: GROUP of them make 32 bits.
struct Bf16 {
  using Value = bf16;
  using Sum = __m512;
  static constexpr int GROUP = 2;
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum add(Sum sum, __m512i input, __m512i weight) {
    return _mm512_dpbf16_ps(sum, (__m512bh)input, (__m512bh)weight);
  }
};

struct Int8 {
  using Value = uint8_t;  // of the input; the weight's are signed
  using Sum = __m512i;
  static constexpr int GROUP = 4;
  static Sum zero() { return _mm512_setzero_si512(); }
  static Sum add(Sum sum, __m512i input, __m512i weight) { return _mm512_dpbusd_epi32(sum, input, weight); }
};

// Adds to the sums of ROWS rows what `steps` steps over one panel give. `next` is prefetched, `lines` cache lines a step.
template <class Type, int ROWS>
inline void multiply(const uint32_t* input, int64_t stride, const uint32_t* panel, int64_t steps, const char* next,
                     int lines, typename Type::Sum (&sums)[ROWS][VECTORS]) {
  typename Type::Sum local[ROWS][VECTORS];  // in registers: nothing else points at them
#pragma GCC unroll 24
  for (int i = 0; i < ROWS * VECTORS; ++i) local[i / VECTORS][i % VECTORS] = sums[i / VECTORS][i % VECTORS];
  for (int64_t k = 0; k < steps; ++k, panel += PANEL) {
    for (int line = 0; line < lines; ++line, next += LINE) _mm_prefetch(next, _MM_HINT_T1);
    __m512i weight[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) weight[v] = _mm512_loadu_si512(panel + v * LANES);
#pragma GCC unroll 6
    for (int m = 0; m < ROWS; ++m) {
      __m512i value = _mm512_set1_epi32(int(input[m * stride + k]));
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) local[m][v] = Type::add(local[m][v], value, weight[v]);
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < ROWS * VECTORS; ++i) sums[i / VECTORS][i % VECTORS] = local[i / VECTORS][i % VECTORS];
}

// A call's operands. `stride` is of input rows, in groups of 32 bits.
template <class Out>
struct Call {
  const uint32_t* input;
  int64_t rows, stride;
  const uint32_t* weight;
  const float* bias;          // [padded outputs], or null
  const float* input_scale;   // int8: [rows]
  const float* weight_scale;  // int8: [padded outputs]
  const int32_t* correction;  // int8: [padded outputs], 128 times the sum of each output's weights
  Out* output;
  int64_t outputs, steps;
};

template <class Out>
inline __m512 finish(const Call<Out>& call, __m512 sum, int64_t, int64_t) {
  return sum;
}

template <class Out>
inline __m512 finish(const Call<Out>& call, __m512i sum, int64_t row, int64_t column) {
  __m512i exact = _mm512_sub_epi32(sum, _mm512_loadu_si512(call.correction + column));
  __m512 scale = _mm512_mul_ps(_mm512_set1_ps(call.input_scale[row]), _mm512_loadu_ps(call.weight_scale + column));
  return _mm512_mul_ps(_mm512_cvtepi32_ps(exact), scale);
}

// Which part of a product a tile computes: some rows, a panel, and steps [begin, end) over k.
struct Part {
  int64_t row, index, begin, end;
  void* partial;  // [rows of the tile, 64] sums of the steps before, and for those after
  const char* next;
  int lines;
};

template <class Type, class Out, int ROWS>
void tile(const Call<Out>& call, const Part& part) {
  typename Type::Sum sums[ROWS][VECTORS];
  auto partial = (typename Type::Sum*)part.partial;
  for (int i = 0; i < ROWS * VECTORS; ++i) sums[i / VECTORS][i % VECTORS] = part.begin ? partial[i] : Type::zero();
  multiply<Type, ROWS>(call.input + part.row * call.stride + part.begin, call.stride,
                       call.weight + (part.index * call.steps + part.begin) * PANEL, part.end - part.begin, part.next,
                       part.lines, sums);
  if (part.end < call.steps) {
    for (int i = 0; i < ROWS * VECTORS; ++i) partial[i] = sums[i / VECTORS][i % VECTORS];
    return;
  }
  for (int v = 0; v < VECTORS; ++v) {
    int64_t column = part.index * PANEL + v * LANES;
    __mmask16 mask = first(std::max<int64_t>(0, call.outputs - column));
    for (int m = 0; m < ROWS; ++m) {
      __m512 value = finish(call, sums[m][v], part.row + m, column);
      if (call.bias) value = _mm512_add_ps(value, _mm512_loadu_ps(call.bias + column));
      store(call.output + (part.row + m) * call.outputs + column, value, mask);
    }
  }
}

template <class Type, class Out>
void tile(const Call<Out>& call, int64_t rows, const Part& part) {
  switch (rows) {
    case 1: return tile<Type, Out, 1>(call, part);
    case 2: return tile<Type, Out, 2>(call, part);
    case 3: return tile<Type, Out, 3>(call, part);
    case 4: return tile<Type, Out, 4>(call, part);
    case 5: return tile<Type, Out, 5>(call, part);
    default: return tile<Type, Out, 6>(call, part);
  }
}

// Rows [first, last) against one panel, in tiles of about the same height. Few rows take the whole of k at once; many
// take it in blocks that stay in the first-level cache. The tiles share the prefetch of what comes next.
template <class Type, class Out>
void panel(const Call<Out>& call, int64_t first, int64_t last, int64_t index, bool final) {
  alignas(64) thread_local float partial[ROWS_PER_TASK * PANEL];
  int64_t tiles = (last - first + MOST_ROWS - 1) / MOST_ROWS;
  int64_t block = tiles < BLOCKED_TILES ? call.steps : STEPS_PER_BLOCK;
  for (int64_t begin = 0; begin < call.steps; begin += block) {
    int64_t end = std::min(call.steps, begin + block);
    const char* next = (const char*)(call.weight + (index * call.steps + end) * PANEL);
    int lines = final && end == call.steps ? 0 : std::max<int64_t>(1, VECTORS / tiles);
    for (int64_t t = 0, row = first; t < tiles; ++t) {
      int64_t rows = (last - row + tiles - t - 1) / (tiles - t);
      Part part{row, index, begin, end, partial + (row - first) * PANEL, next + t * (end - begin) * lines * LINE,
                t * lines < VECTORS ? lines : 0};
      tile<Type>(call, rows, part);
      row += rows;
    }
  }
}

template <class Type, class Out>
void run(const Call<Out>& call) {
  int64_t panels = (call.outputs + PANEL - 1) / PANEL;
  int64_t chunks = (call.rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
  // Panels outside: each thread gets as many rows as the others, and finds a panel in its cache for the second chunk.
#pragma omp for collapse(2) schedule(static)
  for (int64_t index = 0; index < panels; ++index)
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
      panel<Type>(call, chunk * call.rows / chunks, (chunk + 1) * call.rows / chunks, index, index + 1 == panels);
}

// Symmetric, to 127 of the row's greatest value; stored 128 higher, because the instruction wants it unsigned.
inline float quantize_row(const bf16* row, int64_t size, uint8_t* to) {
  __m512 most = _mm512_setzero_ps();
  for (int64_t k = 0; k < size; k += LANES)
    most = _mm512_max_ps(most, _mm512_abs_ps(load(row + k, first(size - k))));
  float scale = _mm512_reduce_max_ps(most) / 127.0f;
  __m512 inverse = _mm512_set1_ps(scale > 0 ? 1.0f / scale : 0.0f);
  for (int64_t k = 0; k < size; k += LANES) {
    __mmask16 mask = first(size - k);
    __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(load(row + k, mask), inverse));
    _mm512_mask_cvtepi32_storeu_epi8(to + k, mask, _mm512_add_epi32(rounded, _mm512_set1_epi32(128)));
  }
  return scale;
}

}  // namespace quire_dot
