// Sums of a panel of 4-bit codes where pairs of bfloat16 are multiplied: the sums are scaled, not the weights.
//
// The grid's numbers are looked up as bfloat16, a pair at a time, and multiplied directly. The products of a span are
// summed in order, in float32, from zero. Then the totals are updated:
//
//   total += offset * (sum of the span's inputs), for all spans of a chunk; total += scale * (the span's sum), for each
//
// with one rounding each. So only the grid's numbers are rounded to bfloat16, if it cannot represent them (nf4, fp4). The
// result does not depend on the other rows: few rows look up codes on the fly; for more rows, a chunk's numbers are first
// written, unscaled, to the first-level cache.
#pragma once

#include "coded.h"

namespace quire {

// Whether sums are scaled for codes that are multiplied as this type. Pairs of 8-bit codes would cost more than they save.
template <class Wide>
constexpr bool scales_sums(int codes) {
  return !Wide::TILES && (codes == NIBBLES || (codes == INT8_CODES && Wide::GROUP == 1));
}

// Rows of a tile, whose sums are in registers together with the codes of eight inputs. Totals are in memory: registers for
// both would leave too few sums to hide the latency of products.
constexpr int SPAN_ROWS = LANES == 16 ? 5 : 3;
// Up to how many rows codes are looked up on the fly: many if that is a single instruction for a pair.
template <class Wide>
constexpr int64_t WIDENING_ROWS = LANES == 16 ? (Wide::GROUP == 2 ? 32 : 2 * SPAN_ROWS) : SPAN_ROWS;

// Where the weights of INPUTS inputs at a time come from: codes of 4 bits,
template <class Wide>
struct Nibbles {
  static constexpr int INPUTS = 8;
  const char* from;
  typename Wide::Table table;
  Ints eight[VECTORS];

  void read() {
    prefetch_coded(from, PANEL * sizeof(int32_t));
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) eight[v] = load_ints((const int32_t*)from + v * LANES);
    from += PANEL * sizeof(int32_t);
  }
  // The weight of the v-th vector of outputs and the group that begins with the i-th input; called in order.
  typename Wide::Weight take(int v, int i) {
    bool odd = i % 2;
    auto weight = Wide::look_up(table, odd ? shift_right<16>(eight[v]) : eight[v]);
    if (odd || Wide::GROUP == 2) eight[v] = shift_right<4>(eight[v]);
    return weight;
  }
};

// codes of 8 bits,
template <class Wide>
struct Bytes {
  static constexpr int INPUTS = 4;
  const char* from;

  void read() {
    prefetch_coded(from, INPUTS * PANEL);
    from += INPUTS * PANEL;
  }
  typename Wide::Weight take(int v, int i) { return load((const int8_t*)from + (i - INPUTS) * PANEL + v * LANES); }
};

// or a block of a panel of Wide.
template <class Wide>
struct WideBlock {
  static constexpr int INPUTS = 2;
  const typename Wide::Stored* from;

  void read() { from += INPUTS * PANEL; }
  typename Wide::Weight take(int v, int i) {
    return Wide::weight(from + (i - INPUTS) * PANEL + v * LANES * Wide::GROUP, 0);
  }
};

// Some rows of a product, of the inputs of one chunk.
template <class Wide>
struct SpanRows {
  const typename Wide::Input* input;
  int64_t stride;
  const float* input_sums;  // [spans, summed], or null: there are no offsets
  int64_t summed;
  float* totals;  // [rows, PANEL]
};

// Adds the offsets' part to the totals.
template <int ROWS, class Rows>
inline void add_offsets(const Rows& rows, const Scales& scales) {
  const float *input_sums = rows.input_sums, *offset = scales.offset[0], *end = offset + scales.numbers();
  for (; offset < end; offset += PANEL, input_sums += rows.summed)
#pragma GCC unroll 5
    for (int m = 0; m < ROWS; ++m) {
      Floats input_sum = all(input_sums[m]);
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) {
        float* total = rows.totals + m * PANEL + v * LANES;
        store(total, fma(input_sum, load(offset + v * LANES), load(total)));
      }
    }
}

// Adds a chunk's products to ROWS rows. Not inlined, so that its loops have all registers.
template <int ROWS, class Wide, class Weights>
[[gnu::noinline]] void add_chunk(Weights weights, const Scales& scales, int64_t span, const SpanRows<Wide>& rows) {
  if (rows.input_sums) add_offsets<ROWS>(rows, scales);
  auto input = rows.input;
  int64_t stride = rows.stride;
  const float* scale = scales.scale[0];
  for (int64_t begin = 0; begin < CHUNK; begin += span, scale += PANEL) {
    typename Wide::Sum sums[ROWS][VECTORS];
#pragma GCC unroll 20
    for (int i = 0; i < ROWS * VECTORS; ++i) sums[i / VECTORS][i % VECTORS] = zero();
    for (int64_t k = 0; k < span; k += Weights::INPUTS, input += Weights::INPUTS) {
      weights.read();
#pragma GCC unroll 8
      for (int i = 0; i < Weights::INPUTS; i += Wide::GROUP)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) {
          auto weight = weights.take(v, i);
#pragma GCC unroll 5
          for (int m = 0; m < ROWS; ++m) sums[m][v] = Wide::add(sums[m][v], Wide::input(input + m * stride + i), weight);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v)
#pragma GCC unroll 5
      for (int m = 0; m < ROWS; ++m) {
        float* total = rows.totals + m * PANEL + v * LANES;
        store(total, fma(sums[m][v], load(scale + v * LANES), load(total)));
      }
  }
}

// The same for `count` rows, up to MOST.
template <int MOST, class Wide, class Weights>
void add_rows(int64_t count, const Weights& weights, const Scales& scales, int64_t span, const SpanRows<Wide>& rows) {
  if constexpr (MOST > 1)
    if (count < MOST) return add_rows<MOST - 1>(count, weights, scales, span, rows);
  add_chunk<MOST>(weights, scales, span, rows);
}

// The same for any number of rows, in tiles of about equal height.
template <class Wide, class Weights>
void add_tiles(int64_t count, const Weights& weights, const Scales& scales, int64_t span, SpanRows<Wide> rows) {
  for (int64_t tiles = (count + SPAN_ROWS - 1) / SPAN_ROWS; tiles > 0; --tiles) {
    int64_t height = (count + tiles - 1) / tiles;
    add_rows<SPAN_ROWS>(height, weights, scales, span, rows);
    rows.input += height * rows.stride, rows.totals += height * PANEL, count -= height;
    if (rows.input_sums) rows.input_sums += height;
  }
}

// Writes a chunk's numbers as a panel of Wide.
template <class Wide, class Weights>
[[gnu::noinline]] void widen_numbers(Weights weights, typename Wide::Stored* to) {
  for (int64_t k = 0; k < CHUNK; k += Weights::INPUTS) {
    weights.read();
#pragma GCC unroll 8
    for (int i = 0; i < Weights::INPUTS; i += Wide::GROUP, to += Wide::GROUP * PANEL)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) {
        auto weight = weights.take(v, i);
        std::memcpy(to + v * LANES * Wide::GROUP, &weight, sizeof(weight));
      }
  }
}

// The sums [rows, PANEL] of rows [first, last), at most a task's, against one panel whose weights come from `weights`.
template <class Wide, class Weights>
void sum_spans(const Operands<Coded<Wide>>& call, int64_t first, int64_t last, int64_t index, Weights weights,
               float* sums) {
  alignas(LINE) typename Wide::Stored wide[CHUNK * PANEL];
  int64_t count = last - first, span = call.form->span, bytes = call.form->chunk_bytes();
  Scales scales(*call.form);
  SpanRows<Wide> rows{call.input + first * call.stride, call.stride, nullptr, call.rows, sums};
  if (call.input_sums) rows.input_sums = call.input_sums + first;
  std::fill(sums, sums + count * PANEL, 0.0f);
  const char* chunk = call.panel(index);
  for (int64_t begin = 0; begin < call.steps; begin += CHUNK, chunk += bytes, rows.input += CHUNK) {
    weights.from = scales.read(chunk);
    if (count <= WIDENING_ROWS<Wide>) {
      add_tiles(count, weights, scales, span, rows);
    } else {
      widen_numbers<Wide>(weights, wide);
      add_tiles(count, WideBlock<Wide>{wide}, scales, span, rows);
    }
    if (rows.input_sums) rows.input_sums += CHUNK / span * call.rows;
  }
}

// Sums the inputs of each span of a row, into every `rows`-th entry of `to`.
template <class Input>
void sum_spans_of(const Input* row, int64_t steps, int64_t span, int64_t rows, float* to) {
  for (int64_t begin = 0; begin < steps; begin += span, to += rows) {
    Floats total = zero();
    for (int64_t k = begin; k < begin + span; k += LANES) total = total + load(row + k);
    *to = sum(total);
  }
}

}  // namespace quire
