// Groups of bfloat16 and int8 for x86: see groups.h.
#pragma once

#include "vector.h"

namespace quire {

#if defined(__AMX_TILE__)

struct Bf16Groups {
  using Stored = bf16;
  using Input = bf16;
  using Sum = Floats;
  using Total = float;
  using Wide = Bf16Groups;
  static constexpr int GROUP = 2, ALIGNMENT = 16, OFFSET = 0;
  static constexpr bool TILES = true;
};

struct Int8Groups {
  using Stored = int8_t;
  using Input = int8_t;
  using Sum = Ints;
  using Total = int32_t;
  static constexpr int GROUP = 4, ALIGNMENT = 16, OFFSET = 0;
  static constexpr bool TILES = true;
};

#else

#if defined(__AVX512BF16__)

struct Bf16Groups {
  using Stored = bf16;
  using Input = bf16;
  using Weight = Ints;
  using Sum = Floats;
  using Total = float;
  using Wide = Bf16Groups;
  static constexpr int GROUP = 2, PARTS = 1, ALIGNMENT = 1, OFFSET = 0;
  static constexpr bool TILES = false;
  static Weight weight(const Stored* from, int) { return _mm512_loadu_si512(from); }
  static Weight pair(Floats first, Floats second) { return pairs(first, second); }
  using Table = Ints;  // twice, for 5 bits say a place
  static Table table(const float* numbers) { return (Ints)_mm512_cvtne2ps_pbh(load(numbers), load(numbers)); }
  static Weight look_up(Table table, Ints places) { return _mm512_permutexvar_epi16(places, table); }
  static Ints input(const Input* from) { return repeat_group(from); }
  static Sum add(Sum sum, Ints input, Weight weight) {
    return _mm512_dpbf16_ps(sum, (__m512bh)input, (__m512bh)weight);
  }
};

#else

using Bf16Groups = Widened<bf16>;

#endif

#if defined(__AVX512VNNI__)

// The instruction wants inputs without a sign: they are 128 higher, which what is added for each output takes back.
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

#else

// Two int16 times two int16 for each lane, which nothing can overflow.
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

#endif
#endif

}  // namespace quire
