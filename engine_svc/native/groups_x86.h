// Groups of bfloat16 for x86: see groups.h.
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

#elif defined(__AVX512BF16__)

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
  // See compressed.h.
  static Ints load_table(const uint16_t* from) { return _mm512_loadu_si512(from); }
  static void decompress(const char* from, Ints table, Weight (&weights)[4]) {
    Ints mantissas = _mm512_set1_epi16(0x7f), words[4];
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) words[i] = _mm512_loadu_si512(from + 64 * i);
    auto joined = [](Ints one, Ints other, Ints mask) { return _mm512_ternarylogic_epi32(one, other, mask, 0xf8); };
    words[3] = joined(_mm512_srli_epi16(words[0], 12), _mm512_srli_epi16(words[1], 8), _mm512_set1_epi16(0xf0));
    words[3] = joined(words[3], _mm512_srli_epi16(words[2], 4), _mm512_set1_epi16(0xf00));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      weights[i] = joined(_mm512_permutexvar_epi16(words[i], table), _mm512_srli_epi16(words[i], 5), mantissas);
  }
  static Ints input(const Input* from) { return repeat_group(from); }
  static Sum add(Sum sum, Ints input, Weight weight) {
    return _mm512_dpbf16_ps(sum, (__m512bh)input, (__m512bh)weight);
  }
};

#else

using Bf16Groups = Widened<bf16>;

#endif

}  // namespace quire
