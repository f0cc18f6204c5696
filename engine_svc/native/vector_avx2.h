// AVX2 with FMA and F16C (x86-64-v3): 8 lanes.
#pragma once

#include <immintrin.h>

namespace quire {

constexpr int LANES = 8;
constexpr int REGISTERS = 16;

using Floats = __m256;
using Ints = __m256i;
using Mask = __m256i;  // all bits of a lane, or none

inline Floats zero() { return _mm256_setzero_ps(); }
inline Floats all(float value) { return _mm256_set1_ps(value); }
inline Ints all_ints(int32_t value) { return _mm256_set1_epi32(value); }

inline Mask first(int64_t count) {
  int bound = count > LANES ? LANES : count < 0 ? 0 : int(count);
  return _mm256_cmpgt_epi32(all_ints(bound), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Mask between(int64_t begin, int64_t end) { return _mm256_andnot_si256(first(begin), first(end)); }
inline Mask at_least(Floats a, Floats b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GE_OQ)); }
inline uint32_t bits(Mask mask) { return uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(mask))); }
inline Floats select(Mask mask, Floats yes, Floats no) { return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(mask)); }

inline Floats widen_bf16(__m128i packed) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(packed), 16));
}

inline __m128i narrow_bf16(Floats values) {
  Ints bits = _mm256_castps_si256(values), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), all_ints(1));
  Ints rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, all_ints(0x7fff)));
  Ints is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(bits, all_ints(0x400000)), is_nan);
  rounded = _mm256_srli_epi32(rounded, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

// Loads the first `count` of 8 16-bit values through the stack, as AVX2 has no masked loads for them.
inline __m128i load_halves(const void* from, int64_t count) {
  alignas(16) uint16_t copy[LANES] = {};
  std::memcpy(copy, from, sizeof(uint16_t) * (count < LANES ? count : LANES));
  return _mm_load_si128((const __m128i*)copy);
}

inline void store_halves(void* to, __m128i values, int64_t count) {
  alignas(16) uint16_t copy[LANES];
  _mm_store_si128((__m128i*)copy, values);
  std::memcpy(to, copy, sizeof(uint16_t) * (count < LANES ? count : LANES));
}

inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
inline Floats load(const bf16* from) { return widen_bf16(_mm_loadu_si128((const __m128i*)from)); }
inline Floats load(const f16* from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from)); }
inline Floats load(const float* from, int64_t count) { return _mm256_maskload_ps(from, first(count)); }
inline Floats load(const bf16* from, int64_t count) {
  return count >= LANES ? load(from) : widen_bf16(load_halves(from, count));
}
inline Floats load(const f16* from, int64_t count) {
  return count >= LANES ? load(from) : _mm256_cvtph_ps(load_halves(from, count));
}

// Converts through f16, which handles subnormal numbers at full speed; e4m3's exponents are 8 lower there.
inline Floats load(const int8_t* from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
}
inline Floats load(const e4m3* from) {
  __m128i halves = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)from)), 7);
  return _mm256_cvtph_ps(_mm_and_si128(halves, _mm_set1_epi16(int16_t(0xbf80))));
}
inline Floats load(const e5m2* from) {
  return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i*)from)), 8));
}

inline Floats even_halves(Ints pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline Floats odd_halves(Ints pairs) { return _mm256_castsi256_ps(_mm256_and_si256(pairs, all_ints(~0xffff))); }

inline __m128i narrow_f16(Floats values) {
  return _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline void store(float* to, Floats values) { _mm256_storeu_ps(to, values); }
inline void store(bf16* to, Floats values) { _mm_storeu_si128((__m128i*)to, narrow_bf16(values)); }
inline void store(f16* to, Floats values) { _mm_storeu_si128((__m128i*)to, narrow_f16(values)); }
inline void store(float* to, Floats values, int64_t count) {
  count >= LANES ? store(to, values) : _mm256_maskstore_ps(to, first(count), values);  // which is slow on AMD
}
inline void store(bf16* to, Floats values, int64_t count) {
  count >= LANES ? store(to, values) : store_halves(to, narrow_bf16(values), count);
}
inline void store(f16* to, Floats values, int64_t count) {
  count >= LANES ? store(to, values) : store_halves(to, narrow_f16(values), count);
}

inline Ints load_ints(const int32_t* from) { return _mm256_loadu_si256((const __m256i*)from); }
inline void store_ints(int32_t* to, Ints values) { _mm256_storeu_si256((__m256i*)to, values); }
inline void store_bytes(uint8_t* to, Ints values, int64_t count) {
  alignas(32) int32_t copy[LANES];
  _mm256_store_si256((__m256i*)copy, values);
  for (int i = 0; i < LANES && i < count; ++i) to[i] = uint8_t(copy[i]);
}

inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats minus_product(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
inline Floats least(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats most(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats magnitude(Floats values) { return _mm256_andnot_ps(all(-0.0f), values); }
inline Floats root(Floats values) { return _mm256_sqrt_ps(values); }

inline float sum(Floats values) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

inline float greatest(Floats values) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

inline Floats nearest(Floats values) {
  return _mm256_round_ps(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Ints to_ints(Floats values) { return _mm256_cvtps_epi32(values); }
inline Floats to_floats(Ints values) { return _mm256_cvtepi32_ps(values); }

// With two factors, because a float32 cannot hold 2^128.
inline Floats times_power(Floats values, Floats power) {
  Ints whole = to_ints(power), half = _mm256_srai_epi32(whole, 1);
  auto factor = [](Ints exponent) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponent, all_ints(127)), 23));
  };
  return values * factor(half) * factor(_mm256_sub_epi32(whole, half));
}

template <int BITS>
inline Ints shift_right(Ints values) {
  return _mm256_srli_epi32(values, BITS);
}

inline Ints with_bits(Ints ints, Ints others, Ints mask) { return ints | (others & mask); }

struct Table {
  Floats low, high;
};
inline Table table(const float* values) { return {load(values), load(values + LANES)}; }
inline Floats look_up(Table table, Ints places) {
  Floats low = _mm256_permutevar8x32_ps(table.low, places), high = _mm256_permutevar8x32_ps(table.high, places);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(places, 28)));
}

inline void transpose(Floats (&rows)[LANES]) {
  Floats half[LANES];
  for (int i = 0; i < LANES; i += 2) {
    half[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    half[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  auto join = [](Floats one, Floats other, bool high) {
    __m256d a = _mm256_castps_pd(one), b = _mm256_castps_pd(other);
    return _mm256_castpd_ps(high ? _mm256_unpackhi_pd(a, b) : _mm256_unpacklo_pd(a, b));
  };
  for (int i = 0; i < LANES; i += 4)
    for (int j = 0; j < 4; ++j) rows[i + j] = join(half[i + j / 2], half[i + j / 2 + 2], j % 2);
  for (int i = 0; i < 4; ++i) {
    half[i] = _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x20);
    half[i + 4] = _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x31);
  }
  for (int i = 0; i < LANES; ++i) rows[i] = half[i];
}

[[gnu::always_inline]] inline void prefetch(const void* line) { _mm_prefetch((const char*)line, _MM_HINT_T0); }
[[gnu::always_inline]] inline void prefetch_far(const void* line) { _mm_prefetch((const char*)line, _MM_HINT_T1); }

}  // namespace quire
