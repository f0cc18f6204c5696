// Groups of bfloat16 for ARM: see groups.h.
#pragma once

#include "vector.h"

namespace quire {

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

struct Bf16Groups {
  using Stored = bf16;
  using Input = bf16;
  using Weight = bfloat16x8_t;
  using Sum = Floats;
  using Total = float;
  using Wide = Bf16Groups;
  static constexpr int GROUP = 2, PARTS = 1, ALIGNMENT = 1, OFFSET = 0;
  static constexpr bool TILES = false;
  static Weight weight(const Stored* from, int) { return vreinterpretq_bf16_u16(vld1q_u16((const uint16_t*)from)); }
  static Weight pair(Floats first, Floats second) { return pairs(first, second); }
  using Table = uint8x16x2_t;
  static Table table(const float* numbers) {
    bf16 rounded[16];
    for (int i = 0; i < 16; i += LANES) store(rounded + i, load(numbers + i));
    return vld1q_u8_x2((const uint8_t*)rounded);
  }
  static Weight look_up(Table table, Ints places) {
    uint16x8_t place = vandq_u16(vreinterpretq_u16_s32(places), vdupq_n_u16(15));
    uint16x8_t bytes = vmlaq_n_u16(vdupq_n_u16(0x0100), place, 0x0202);
    return vreinterpretq_bf16_u8(vqtbl2q_u8(table, vreinterpretq_u8_u16(bytes)));
  }
  static Weight input(const Input* from) { return vreinterpretq_bf16_s32(repeat_group(from)); }
  static Sum add(Sum sum, Weight input, Weight weight) { return vbfdotq_f32(sum, weight, input); }
};

#else

using Bf16Groups = Widened<bf16>;

#endif

}  // namespace quire
