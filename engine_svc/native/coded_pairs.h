// Sums of a panel of int8 codes on processors with AMX's matrix registers (tiles).
//
// A chunk's codes are unsigned bytes [2, CHUNK / 2, PANEL / 2, 2]: half a panel's outputs side by side, with the codes of
// two inputs each. While tiles are in use, and for a while after, floating-point arithmetic, which limits dequantizing int8,
// runs at half its speed. So one or two rows are multiplied without tiles, and for more rows a whole block is dequantized
// before tiles multiply it as in matrix_amx.h. Both give the same bits: a tile sums the products of even inputs and those
// of odd inputs separately, each in order, and adds both sums to the previous sum.
#pragma once

#include "coded_amx.h"
#include "matrix_amx.h"

namespace quire {

constexpr int64_t PAIRS_ROWS = 2;                        // most rows that are multiplied without tiles
constexpr int64_t PAIR_VECTORS = PANEL / 2 / (LANES / 2);  // of half a panel's pairs
constexpr int64_t RUN = 16;                              // inputs, which share their scales in any form
constexpr int64_t BLOCK_STEPS = 512;                     // dequantized at once, for many rows
constexpr float RAISED = 32768 + 128;

// Treats subnormal numbers as zeros, as tiles do.
struct NormalNumbers {
  unsigned before = _mm_getcsr();
  NormalNumbers() { _mm_setcsr(before | 0x8040); }
  ~NormalNumbers() { _mm_setcsr(before); }
};

// Loads LANES codes, higher by RAISED: each byte is put where the mantissa of a float32 of 2^15 counts ones.
inline Floats load_raised(const char* from) {
  Ints places = _mm512_set_epi8(
      -1, -1, 15, -1, -1, -1, 14, -1, -1, -1, 13, -1, -1, -1, 12, -1, -1, -1, 11, -1, -1, -1, 10, -1, -1, -1, 9, -1, -1,
      -1, 8, -1, -1, -1, 7, -1, -1, -1, 6, -1, -1, -1, 5, -1, -1, -1, 4, -1, -1, -1, 3, -1, -1, -1, 2, -1, -1, -1, 1, -1,
      -1, -1, 0, -1);
  Ints codes = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)from));
  return _mm512_castsi512_ps(_mm512_mask_shuffle_epi8(all_ints(0x47000000), 0x2222222222222222, codes, places));
}

// The numbers of eight outputs, each one twice.
inline Floats twice(const float* from) {
  Ints places = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  return _mm512_permutexvar_ps(places, _mm512_castps256_ps512(_mm256_loadu_ps(from)));
}

// Dequantizes codes of eight outputs. EXACT: scales have 16 bits and there are no offsets. Then 32896 times a scale is
// exact, and codes may be read RAISED.
template <bool EXACT>
struct PairWeights {
  static constexpr float RAISED_BY = EXACT ? RAISED : 0;
  Floats scale, offset;

  void read(const Scales& scales, int64_t span, int64_t n) {
    scale = twice(scales.scale[span] + n), offset = twice(scales.offset[span] + n);
  }
  Floats operator()(const char* codes) const {
    Floats code = load_raised(codes);
    return fma(EXACT ? code : code - all(RAISED), scale, offset);
  }
};

// Rounds numbers below 2^112 to the nearest bfloat16, ties to even: 65535 * x is rounded at the last bit of a bfloat16, so
// its difference to 65536 * x is the rounded x. In a tie, the last bit of x itself is zero.
inline Floats round_in_place(Floats x) { return _mm512_fmsub_ps(x, all(65536.0f), x * all(65535.0f)); }

// Adds the products of TILE_INPUTS inputs to the sums of ROWS rows and half a panel; rows are float32, CHUNK apart.
template <int ROWS, bool EXACT>
void add_pairs(const float* input, const char* codes, const Scales& scales, int64_t span, int64_t k, int64_t first,
               float* sums) {
  Floats added[ROWS][PAIR_VECTORS];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS * PAIR_VECTORS; ++i) added[i / PAIR_VECTORS][i % PAIR_VECTORS] = zero();
  for (int64_t run = 0; run < TILE_INPUTS; run += RUN) {
    PairWeights<EXACT> weights[PAIR_VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < PAIR_VECTORS; ++v) weights[v].read(scales, (k + run) / span, first + v * LANES / 2);
#pragma GCC unroll 2
    for (int64_t i = run; i < run + RUN; i += 2, codes += PANEL) {
      prefetch_far(codes + AHEAD_BYTES);
      Floats values[ROWS];
#pragma GCC unroll 4
      for (int m = 0; m < ROWS; ++m)
        values[m] = _mm512_castpd_ps(_mm512_set1_pd(*(const double*)(input + m * CHUNK + k + i)));
#pragma GCC unroll 4
      for (int v = 0; v < PAIR_VECTORS; ++v) {
        Floats weight = round_in_place(weights[v](codes + v * LANES));
#pragma GCC unroll 4
        for (int m = 0; m < ROWS; ++m) added[m][v] = fma(values[m], weight, added[m][v]);
      }
    }
  }
  Ints even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  Ints odd = _mm512_add_epi32(even, all_ints(1));
#pragma GCC unroll 4
  for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < PAIR_VECTORS; v += 2) {
      float* to = sums + m * PANEL + first + v * LANES / 2;
      auto those = [&](Ints places) { return _mm512_permutex2var_ps(added[m][v], places, added[m][v + 1]); };
      store(to, load(to) + (those(even) + those(odd)));
    }
}

// The sums of a few rows.
template <int ROWS, bool EXACT>
void sum_pairs(const Operands<Coded<Bf16Groups>>& call, int64_t first, int64_t index, float* sums) {
  alignas(LINE) float input[ROWS * CHUNK];
  Scales scales(*call.form, PairWeights<EXACT>::RAISED_BY);
  std::fill(sums, sums + ROWS * PANEL, 0.0f);
  const char* chunk = call.panel(index);
  for (int64_t begin = 0; begin < call.steps; begin += CHUNK, chunk += call.form->chunk_bytes()) {
    for (int64_t i = 0; i < ROWS * CHUNK; i += LANES)
      store(input + i, load(call.input + (first + i / CHUNK) * call.stride + begin + i % CHUNK));
    const char* codes = scales.read(chunk);
    for (int64_t n = 0; n < PANEL; n += PANEL / 2)
      for (int64_t k = 0; k < CHUNK; k += TILE_INPUTS, codes += TILE_INPUTS * PANEL / 2)
        add_pairs<ROWS, EXACT>(input, codes, scales, call.form->span, k, n, sums);
  }
}

// Dequantizes a chunk to pairs of bfloat16, as matrix_amx.h takes them.
template <bool EXACT>
void widen_pairs(const char* codes, const Scales& scales, int64_t span, bf16* to) {
  for (int64_t first = 0; first < PANEL; first += PANEL / 2)
    for (int64_t run = 0; run < CHUNK; run += RUN) {
      PairWeights<EXACT> weights[PAIR_VECTORS];
#pragma GCC unroll 4
      for (int v = 0; v < PAIR_VECTORS; ++v) weights[v].read(scales, run / span, first + v * LANES / 2);
#pragma GCC unroll 2
      for (int64_t k = run; k < run + RUN; k += 2, codes += PANEL) {
        prefetch_far(codes + AHEAD_BYTES);
#pragma GCC unroll 2
        for (int v = 0; v < PAIR_VECTORS; v += 2)
          store_ints((int32_t*)to + group_at<Bf16Groups>(k / 2, first + v * LANES / 2),
                     round_both(weights[v](codes + v * LANES), weights[v + 1](codes + (v + 1) * LANES)));
      }
    }
}

// The sums of more rows, by blocks that are dequantized first.
template <bool EXACT>
void sum_widened(const Operands<Coded<Bf16Groups>>& call, int64_t first, int64_t last, int64_t index, float* sums) {
  alignas(LINE) bf16 wide[BLOCK_STEPS * PANEL * 2];
  Scales scales(*call.form, PairWeights<EXACT>::RAISED_BY);
  const char* chunk = call.panel(index);
  TileRows<Bf16Groups> rows{call.input + first * call.stride, call.stride, last - first};
  Ahead nothing_ahead{};
  for (int64_t begin = 0; begin < call.steps; begin += BLOCK_STEPS * 2) {
    int64_t size = std::min(BLOCK_STEPS * 2, call.steps - begin);
    for (int64_t k = 0; k < size; k += CHUNK, chunk += call.form->chunk_bytes())
      widen_pairs<EXACT>(scales.read(chunk), scales, call.form->span, wide + k * PANEL);
    for (int64_t row = 0; row < rows.count; row += 2 * TILE)
      rows.add(row, begin, wide, size / 2, nothing_ahead, sums + row * PANEL);
  }
  _tile_release();
}

template <bool EXACT, int MOST = PAIRS_ROWS>
void sum_pairs_or_widened(const Operands<Coded<Bf16Groups>>& call, int64_t first, int64_t last, int64_t index, float* sums) {
  if (last - first > MOST) return sum_widened<EXACT>(call, first, last, index, sums);
  if constexpr (MOST > 1)
    if (last - first < MOST) return sum_pairs_or_widened<EXACT, MOST - 1>(call, first, last, index, sums);
  sum_pairs<MOST, EXACT>(call, first, index, sums);
}

template <bool EXACT>
void sum_pair_panel(const Operands<Coded<Bf16Groups>>& call, int64_t first, int64_t last, int64_t index, float* sums) {
  NormalNumbers normal;
  sum_pairs_or_widened<EXACT>(call, first, last, index, sums);
}

// See sum_panel in coded_wide.h. Rows are not arranged in strips.
template <class Wide, std::enable_if_t<Wide::TILES, int> = 0>
void sum_panel(const Operands<Coded<Wide>>& call, int64_t first, int64_t last, int64_t index, float* sums) {
  const CodedForm& form = *call.form;
  bool exact = form.offset_type < 0 && form.scale_type != 0;
  exact ? sum_pair_panel<true>(call, first, last, index, sums) : sum_pair_panel<false>(call, first, last, index, sums);
}

}  // namespace quire
