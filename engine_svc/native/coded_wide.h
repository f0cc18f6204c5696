// Sums of a panel of codes by dequantizing them: chunks are dequantized to weights of the type Wide in the first-level
// cache, once for all rows of a task; or, for a few rows, in registers.
#pragma once

#include "coded_spans.h"

namespace quire {

// A destination of dequantized weights, which come for inputs k and k + 1 of a panel's v-th LANES outputs at a time: stores
// them in a block of a panel of Wide.
template <class Wide>
struct Block {
  static constexpr bool FETCHES = true;
  typename Wide::Stored* to;

  void take(int64_t k, int v, Floats first, Floats second) const {
    typename Wide::Stored* place = to + k * PANEL + v * LANES * Wide::GROUP;
    if constexpr (Wide::GROUP == 1)
      store(place, first), store(place + PANEL, second);
    else
      store_pairs(place, first, second);
  }
};

// Another destination: multiplies them into the sums of a few rows at once. Then the hardware prefetcher is not disturbed.
template <class Wide, int ROWS>
struct RowSums {
  static constexpr bool FETCHES = false;
  const typename Wide::Input* input;
  int64_t stride;
  typename Wide::Sum (&sums)[ROWS][VECTORS];

  void take(int64_t k, int v, Floats first, Floats second) const {
    if constexpr (Wide::GROUP == 1) {
#pragma GCC unroll 12
      for (int m = 0; m < ROWS; ++m) {
        const typename Wide::Input* from = input + m * stride + k;
        sums[m][v] = Wide::add(Wide::add(sums[m][v], Wide::input(from), first), Wide::input(from + 1), second);
      }
    } else {
      auto weight = Wide::pair(first, second);
#pragma GCC unroll 12
      for (int m = 0; m < ROWS; ++m) sums[m][v] = Wide::add(sums[m][v], Wide::input(input + m * stride + k), weight);
    }
  }
};

template <class Code, class Taker>
[[gnu::always_inline]] inline void widen_bytes(const char* codes, const Scales& scales, const CodedForm& form,
                                               const Taker& to) {
  for (int64_t k = 0, span = 0; k < CHUNK; ++span) {
    const float *scale = scales.scale[span], *offset = scales.offset[span];
    for (int64_t last = (span + 1) * form.span; k < last; k += 2) {
      auto from = (const Code*)codes + k * PANEL;
      if (Taker::FETCHES) prefetch_coded((const char*)from, 2 * PANEL);
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) {
        Floats by = load(scale + v * LANES), and_then = load(offset + v * LANES);
        to.take(k, v, fma(load(from + v * LANES), by, and_then), fma(load(from + PANEL + v * LANES), by, and_then));
      }
    }
  }
}

// Dequantizes a chunk's codes.
template <class Taker>
[[gnu::always_inline]] inline void widen_codes(const char* codes, const Scales& scales, const CodedForm& form,
                                               const Taker& to) {
  switch (form.codes) {
    case INT8_CODES: return widen_bytes<int8_t>(codes, scales, form, to);
    case E4M3_TABLES:
    case E4M3_CODES: return widen_bytes<e4m3>(codes, scales, form, to);
    case E5M2_CODES: return widen_bytes<e5m2>(codes, scales, form, to);
  }
}

// Dequantizes a chunk to a panel of Wide. Not inlined, so that its loops have all registers.
template <class Wide>
[[gnu::noinline]] void widen_chunk(const char* codes, const Scales& scales, const CodedForm& form,
                                   typename Wide::Stored* to) {
  widen_codes(codes, scales, form, Block<Wide>{to});
}

// Up to how many rows the sums leave registers for dequantized weights: storing and loading these would cost more.
constexpr int LEAST_ROWS = REGISTERS == 32 ? 4 : 1;

template <class Wide, int ROWS>
void sum_few(int64_t rows, const Operands<Coded<Wide>>& call, int64_t first, const char* chunk, float* sums) {
  if constexpr (ROWS > 1)
    if (rows < ROWS) return sum_few<Wide, ROWS - 1>(rows, call, first, chunk, sums);
  Scales scales(*call.form);
  typename Wide::Sum local[ROWS][VECTORS];
#pragma GCC unroll 12
  for (int i = 0; i < ROWS * VECTORS; ++i) local[i / VECTORS][i % VECTORS] = zero();
  RowSums<Wide, ROWS> to{call.input + first * call.stride, call.stride, local};
  for (int64_t k = 0, bytes = call.form->chunk_bytes(); k < call.steps; k += CHUNK, chunk += bytes, to.input += CHUNK)
    widen_codes(scales.read(chunk), scales, *call.form, to);
#pragma GCC unroll 12
  for (int i = 0; i < ROWS * VECTORS; ++i) store(sums + i * LANES, local[i / VECTORS][i % VECTORS]);
}

// The sums [rows, PANEL] of rows [first, last), at most a task's, against one panel.
template <class Wide, std::enable_if_t<!Wide::TILES, int> = 0>
void sum_panel(const Operands<Coded<Wide>>& call, int64_t first, int64_t last, int64_t index, float* sums) {
  if (call.form->codes == NIBBLES)
    return sum_spans(call, first, last, index, Nibbles<Wide>{nullptr, Wide::table(call.form->grid), {}}, sums);
  if constexpr (scales_sums<Wide>(INT8_CODES))
    if (call.form->codes == INT8_CODES) return sum_spans(call, first, last, index, Bytes<Wide>{}, sums);
  const char* chunk = call.panel(index);
  if (last - first <= LEAST_ROWS) return sum_few<Wide, LEAST_ROWS>(last - first, call, first, chunk, sums);
  alignas(LINE) typename Wide::Stored wide[CHUNK * PANEL];
  Scales scales(*call.form);
  Part<Wide> part{call.input + first * call.stride, call.stride, wide, CHUNK / Wide::GROUP, true, sums, {}, nullptr};
  for (int64_t k = 0, bytes = call.form->chunk_bytes(); k < call.steps; k += CHUNK, chunk += bytes) {
    widen_chunk<Wide>(scales.read(chunk), scales, *call.form, wide);
    if (last - first <= FEW_ROWS)
      multiply_rows<Wide, VECTORS, false, FEW_ROWS>(last - first, part);
    else
      multiply_tiles(last - first, part, nullptr);
    part.input += CHUNK, part.fresh = false;
  }
}

}  // namespace quire
