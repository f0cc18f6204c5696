// What the kernels share: bfloat16 in memory, float32 in registers, 16 lanes at a time.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quire_dot {

using bf16 = uint16_t;

constexpr int LANES = 16;

inline __mmask16 first(int64_t count) { return count >= LANES ? 0xffff : __mmask16((1u << count) - 1); }

inline __m512 widen(__m256i packed) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(packed), 16));
}

inline __m512 load(const bf16* from) { return widen(_mm256_loadu_si256((const __m256i*)from)); }
inline __m512 load(const float* from) { return _mm512_loadu_ps(from); }
inline __m512 load(const bf16* from, __mmask16 mask) { return widen(_mm256_maskz_loadu_epi16(mask, from)); }

inline __m256i narrow(__m512 values) { return (__m256i)_mm512_cvtneps_pbh(values); }

inline void store(bf16* to, __m512 values) { _mm256_storeu_si256((__m256i*)to, narrow(values)); }
inline void store(float* to, __m512 values) { _mm512_storeu_ps(to, values); }
inline void store(bf16* to, __m512 values, __mmask16 mask) { _mm256_mask_storeu_epi16(to, mask, narrow(values)); }
inline void store(float* to, __m512 values, __mmask16 mask) { _mm512_mask_storeu_ps(to, mask, values); }

// e to the x, to 2 units in the last place: 2^n times a polynomial (Cody and Waite's reduction).
inline __m512 exponential(__m512 x) {
  x = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(88.0f)), _mm512_set1_ps(-87.0f));
  __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 y = _mm512_set1_ps(1.9875691500e-4f);
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.3981999507e-3f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.3334519073e-3f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.1665795894e-2f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.6666665459e-1f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.0000001201e-1f));
  y = _mm512_fmadd_ps(_mm512_mul_ps(y, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
  return _mm512_scalef_ps(y, n);
}

// gate_up [2 * size]: gate * sigmoid(z) * up. z is gate itself (SiLU), or what makes it GELU by the hyperbolic tangent
// (Hendrycks and Gimpel 2016): (1 + tanh(z / 2)) / 2 is sigmoid(z).
template <bool GELU>
inline void activate_and_multiply(const bf16* gate_up, bf16* output, int64_t size) {
  for (int64_t i = 0; i < size; i += LANES) {
    __mmask16 mask = first(size - i);
    __m512 gate = load(gate_up + i, mask), up = load(gate_up + size + i, mask), z = gate;
    if (GELU) {
      __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(gate, gate), _mm512_set1_ps(0.044715f), _mm512_set1_ps(1.0f));
      z = _mm512_mul_ps(_mm512_mul_ps(gate, cubic), _mm512_set1_ps(1.5957691216f));
    }
    __m512 inverse = _mm512_add_ps(_mm512_set1_ps(1.0f), exponential(_mm512_sub_ps(_mm512_setzero_ps(), z)));
    store(output + i, _mm512_div_ps(_mm512_mul_ps(gate, up), inverse), mask);
  }
}

constexpr int VECTORS = 4;
constexpr int PANEL = VECTORS * LANES;
constexpr int MOST_ROWS = 6;
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

}  // namespace quire_dot
