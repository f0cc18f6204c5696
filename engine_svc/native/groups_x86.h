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
  using Table = Ints;  // the numbers twice, as indices have 5 bits
  static Table table(const float* numbers) { return (Ints)_mm512_cvtne2ps_pbh(load(numbers), load(numbers)); }
  static Weight look_up(Table table, Ints places) { return _mm512_permutexvar_epi16(places, table); }
  static Weight part_of(Ints groups, int) { return groups; }
  static Ints input(const Input* from) { return repeat_group(from); }
  static Sum add(Sum sum, Ints input, Weight weight) {
    return _mm512_dpbf16_ps(sum, (__m512bh)input, (__m512bh)weight);
  }
};

#else

using Bf16Groups = Widened<bf16>;

#endif

}  // namespace quire
