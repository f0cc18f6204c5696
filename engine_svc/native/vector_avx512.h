// AVX-512 (F, BW, VL, DQ): 16 lanes.
#pragma once

#include <immintrin.h>

namespace quire {

constexpr int LANES = 16;
constexpr int REGISTERS = 32;

using Floats = __m512;
using Ints = __m512i;
using Mask = __mmask16;

inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats all(float value) { return _mm512_set1_ps(value); }
inline Ints all_ints(int32_t value) { return _mm512_set1_epi32(value); }

inline Mask first(int64_t count) { return count >= LANES ? 0xffff : count <= 0 ? 0 : Mask((1u << count) - 1); }
inline Mask between(int64_t begin, int64_t end) { return first(end) & ~first(begin); }
inline Mask at_least(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline uint32_t bits(Mask mask) { return mask; }
inline Floats select(Mask mask, Floats yes, Floats no) { return _mm512_mask_mov_ps(no, mask, yes); }

inline Floats widen_bf16(__m256i packed) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(packed), 16));
}

inline __m256i narrow_bf16(Floats values) {
#ifdef __AVX512BF16__
  return (__m256i)_mm512_cvtneps_pbh(values);
#else
  Ints bits = _mm512_castps_si512(values), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), all_ints(1));
  Ints rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, all_ints(0x7fff)));
  Mask is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, all_ints(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
}

inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline Floats load(const bf16* from) { return widen_bf16(_mm256_loadu_si256((const __m256i*)from)); }
inline Floats load(const f16* from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from)); }
inline Floats load(const float* from, int64_t count) { return _mm512_maskz_loadu_ps(first(count), from); }
inline Floats load(const bf16* from, int64_t count) { return widen_bf16(_mm256_maskz_loadu_epi16(first(count), from)); }
inline Floats load(const f16* from, int64_t count) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(count), from));
}

// Converts through f16, which handles subnormal numbers at full speed; e4m3's exponents are 8 lower there.
inline Floats load(const int8_t* from) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
}
inline Floats load(const e4m3* from) {
  __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from)), 7);
  return _mm512_cvtph_ps(_mm256_and_si256(halves, _mm256_set1_epi16(int16_t(0xbf80))));
}
inline Floats load(const e5m2* from) {
  return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)from)), 8));
}

inline Floats even_halves(Ints pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline Floats odd_halves(Ints pairs) { return _mm512_castsi512_ps(_mm512_and_si512(pairs, all_ints(~0xffff))); }

inline void store(float* to, Floats values) { _mm512_storeu_ps(to, values); }
inline void store(bf16* to, Floats values) { _mm256_storeu_si256((__m256i*)to, narrow_bf16(values)); }
inline void store(f16* to, Floats values) {
  _mm256_storeu_si256((__m256i*)to, _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void store(float* to, Floats values, int64_t count) { _mm512_mask_storeu_ps(to, first(count), values); }
inline void store(bf16* to, Floats values, int64_t count) {
  _mm256_mask_storeu_epi16(to, first(count), narrow_bf16(values));
}
inline void store(f16* to, Floats values, int64_t count) {
  _mm256_mask_storeu_epi16(to, first(count), _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#ifdef __AVX512BF16__
inline Ints pairs(Floats even, Floats odd) {
  Ints places = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(places, (Ints)_mm512_cvtne2ps_pbh(odd, even));
}
inline void store_pairs(bf16* to, Floats even, Floats odd) { _mm512_storeu_si512(to, pairs(even, odd)); }
#endif

inline Ints load_ints(const int32_t* from) { return _mm512_loadu_si512(from); }
inline void store_ints(int32_t* to, Ints values) { _mm512_storeu_si512(to, values); }
inline void store_bytes(uint8_t* to, Ints values, int64_t count) {
  _mm512_mask_cvtepi32_storeu_epi8(to, first(count), values);
}

inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats minus_product(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
inline Floats least(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats most(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats magnitude(Floats values) { return _mm512_abs_ps(values); }
inline Floats root(Floats values) { return _mm512_sqrt_ps(values); }
inline float sum(Floats values) { return _mm512_reduce_add_ps(values); }
inline float greatest(Floats values) { return _mm512_reduce_max_ps(values); }

inline Floats nearest(Floats values) { return _mm512_roundscale_ps(values, _MM_FROUND_TO_NEAREST_INT); }
inline Floats times_power(Floats values, Floats power) { return _mm512_scalef_ps(values, power); }
inline Ints to_ints(Floats values) { return _mm512_cvtps_epi32(values); }
inline Floats to_floats(Ints values) { return _mm512_cvtepi32_ps(values); }

template <int BITS>
inline Ints shift_right(Ints values) {
  return _mm512_srli_epi32(values, BITS);
}

inline Ints with_bits(Ints ints, Ints others, Ints mask) { return _mm512_ternarylogic_epi32(ints, others, mask, 0xf8); }

using Table = Floats;
inline Table table(const float* values) { return load(values); }
inline Floats look_up(Table table, Ints places) { return _mm512_permutexvar_ps(places, table); }

inline void transpose(Floats (&rows)[LANES]) {
  Floats half[LANES];
  for (int i = 0; i < LANES; i += 2) {
    half[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    half[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  auto join = [](Floats one, Floats other, bool high) {
    __m512d a = _mm512_castps_pd(one), b = _mm512_castps_pd(other);
    return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(a, b) : _mm512_unpacklo_pd(a, b));
  };
  for (int i = 0; i < LANES; i += 4)
    for (int j = 0; j < 4; ++j) rows[i + j] = join(half[i + j / 2], half[i + j / 2 + 2], j % 2);
  for (int i = 0; i < 4; ++i) {
    half[i] = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0x88);
    half[i + 4] = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0xdd);
    half[i + 8] = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0x88);
    half[i + 12] = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_f32x4(half[i], half[i + 8], 0x88);
    rows[i + 4] = _mm512_shuffle_f32x4(half[i + 4], half[i + 12], 0x88);
    rows[i + 8] = _mm512_shuffle_f32x4(half[i], half[i + 8], 0xdd);
    rows[i + 12] = _mm512_shuffle_f32x4(half[i + 4], half[i + 12], 0xdd);
  }
}

[[gnu::always_inline]] inline void prefetch(const void* line) { _mm_prefetch((const char*)line, _MM_HINT_T0); }
[[gnu::always_inline]] inline void prefetch_far(const void* line) { _mm_prefetch((const char*)line, _MM_HINT_T1); }

}  // namespace quire
