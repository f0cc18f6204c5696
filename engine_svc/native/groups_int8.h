// Groups of int8; see groups.h. In a separate file, so that sources without int8 products are compiled only once for levels
// that differ in these.
#pragma once

#include "groups.h"

namespace quire {

#if defined(__AMX_TILE__)

struct Int8Groups {
  using Stored = int8_t;
  using Input = int8_t;
  using Sum = Ints;
  using Total = int32_t;
  static constexpr int GROUP = 4, ALIGNMENT = 16, OFFSET = 0;
  static constexpr bool TILES = true;
};

#elif defined(__AVX512VNNI__)

// The instruction takes unsigned inputs. So inputs are stored 128 higher, and a correction for each output undoes this.
struct Int8Groups {
  using Stored = int8_t;
  using Input = uint8_t;
  using Weight = Ints;
  using Sum = Ints;
  using Total = int32_t;
  using Wide = Int8Groups;
  static constexpr int GROUP = 4, PARTS = 1, ALIGNMENT = 1, OFFSET = 128;
  static constexpr bool TILES = false;
  static Weight weight(const Stored* from, int) { return _mm512_loadu_si512(from); }
  static Ints input(const Input* from) { return repeat_group(from); }
  static Sum add(Sum sum, Ints input, Weight weight) { return _mm512_dpbusd_epi32(sum, input, weight); }
};

#elif defined(__AVX2__)

// Two int16 times two int16 in each lane, which cannot overflow.
struct Int16Groups {
  using Stored = int16_t;
  using Input = int16_t;
  using Weight = Ints;
  using Sum = Ints;
  using Total = int32_t;
  using Wide = Int16Groups;
  static constexpr int GROUP = 2, PARTS = 1, ALIGNMENT = 1, OFFSET = 0;
  static constexpr bool TILES = false;
  static Weight weight(const Stored* from, int) { return load_ints((const int32_t*)from); }
  static Ints input(const Input* from) { return repeat_group(from); }
  static void widen(Stored* to, Weight weight) { store_ints((int32_t*)to, weight); }
#if defined(__AVX512F__)
  static Sum add(Sum sum, Ints input, Weight weight) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(input, weight));
  }
#else
  static Sum add(Sum sum, Ints input, Weight weight) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(input, weight));
  }
#endif
};

struct Int8Groups : Int16Groups {
  using Stored = int8_t;
#if defined(__AVX512F__)
  static Weight weight(const Stored* from, int) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)from));
  }
#else
  static Weight weight(const Stored* from, int) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from));
  }
#endif
};

#else  // ARM

struct Int8Groups {
  using Stored = int8_t;
  using Input = int8_t;
  using Weight = int8x16_t;
  using Sum = Ints;
  using Total = int32_t;
  using Wide = Int8Groups;
  static constexpr int GROUP = 4, PARTS = 1, ALIGNMENT = 1, OFFSET = 0;
  static constexpr bool TILES = false;
  static Weight weight(const Stored* from, int) { return vld1q_s8(from); }
  static Weight input(const Input* from) { return vreinterpretq_s8_s32(repeat_group(from)); }
  static Sum add(Sum sum, Weight input, Weight weight) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sum, weight, input);
#else
    // 16 bits hold the sum of two products of values up to 127.
    int16x8_t low = vmull_s8(vget_low_s8(weight), vget_low_s8(input)), high = vmull_high_s8(weight, input);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
#endif
  }
};

#endif

}  // namespace quire
