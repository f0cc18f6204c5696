// NEON (armv8-a): 4 lanes.
#pragma once

#include <arm_neon.h>

namespace quire {

constexpr int LANES = 4, REGISTERS = 32;

using Floats = float32x4_t;
using Ints = int32x4_t;
using Mask = uint32x4_t;  // all bits of a lane, or none

inline Floats zero() { return vdupq_n_f32(0.0f); }
inline Floats all(float value) { return vdupq_n_f32(value); }
inline Ints all_ints(int32_t value) { return vdupq_n_s32(value); }

inline Mask first(int64_t count) {
  int bound = count > LANES ? LANES : count < 0 ? 0 : int(count);
  return vcgtq_s32(all_ints(bound), Ints{0, 1, 2, 3});
}
inline Mask between(int64_t begin, int64_t end) { return vbicq_u32(first(end), first(begin)); }
inline Mask at_least(Floats a, Floats b) { return vcgeq_f32(a, b); }
inline uint32_t bits(Mask mask) { return vaddvq_u32(vandq_u32(mask, uint32x4_t{1, 2, 4, 8})); }
inline Floats select(Mask mask, Floats yes, Floats no) { return vbslq_f32(mask, yes, no); }

inline Floats widen_bf16(uint16x4_t packed) { return vreinterpretq_f32_u32(vshll_n_u16(packed, 16)); }

inline uint16x4_t narrow_bf16(Floats values) {
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
  return vreinterpret_u16_bf16(vcvt_bf16_f32(values));
#else
  uint32x4_t bits = vreinterpretq_u32_f32(values), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  rounded = vbslq_u32(vceqq_f32(values, values), rounded, vorrq_u32(bits, vdupq_n_u32(0x400000)));
  return vshrn_n_u32(rounded, 16);
#endif
}

inline Floats widen_f16(uint16x4_t packed) { return vcvt_f32_f16(vreinterpret_f16_u16(packed)); }
inline uint16x4_t narrow_f16(Floats values) { return vreinterpret_u16_f16(vcvt_f16_f32(values)); }

inline Floats load(const float* from) { return vld1q_f32(from); }
inline Floats load(const bf16* from) { return widen_bf16(vld1_u16((const uint16_t*)from)); }
inline Floats load(const f16* from) { return widen_f16(vld1_u16((const uint16_t*)from)); }

inline int16x4_t load_bytes(const void* from) {
  uint32_t bytes;
  std::memcpy(&bytes, from, sizeof(bytes));
  return vget_low_s16(vmovl_s8(vcreate_s8(bytes)));
}

// Converts through f16, which handles subnormal numbers at full speed; e4m3's exponents are 8 lower there.
inline Floats load(const int8_t* from) { return vcvtq_f32_s32(vmovl_s16(load_bytes(from))); }
inline Floats load(const e4m3* from) {
  return widen_f16(vand_u16(vreinterpret_u16_s16(vshl_n_s16(load_bytes(from), 7)), vdup_n_u16(0xbf80)));
}
inline Floats load(const e5m2* from) { return widen_f16(vreinterpret_u16_s16(vshl_n_s16(load_bytes(from), 8))); }

inline Floats even_halves(Ints pairs) { return vreinterpretq_f32_s32(vshlq_n_s32(pairs, 16)); }
inline Floats odd_halves(Ints pairs) { return vreinterpretq_f32_s32(pairs & all_ints(~0xffff)); }

inline void store(float* to, Floats values) { vst1q_f32(to, values); }
inline void store(bf16* to, Floats values) { vst1_u16((uint16_t*)to, narrow_bf16(values)); }
inline void store(f16* to, Floats values) { vst1_u16((uint16_t*)to, narrow_f16(values)); }

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
inline bfloat16x8_t pairs(Floats even, Floats odd) {
  uint16x4_t first = narrow_bf16(even), second = narrow_bf16(odd);
  return vreinterpretq_bf16_u16(vcombine_u16(vzip1_u16(first, second), vzip2_u16(first, second)));
}
inline void store_pairs(bf16* to, Floats even, Floats odd) {
  vst2_u16((uint16_t*)to, uint16x4x2_t{narrow_bf16(even), narrow_bf16(odd)});
}
#endif

// Through the stack, as NEON has no masked loads and stores.
template <class Value>
inline Floats load(const Value* from, int64_t count) {
  if (count >= LANES) return load(from);
  Value copy[LANES] = {};
  for (int i = 0; i < count; ++i) copy[i] = from[i];
  return load(copy);
}

template <class Value>
inline void store(Value* to, Floats values, int64_t count) {
  if (count >= LANES) return store(to, values);
  Value copy[LANES];
  store(copy, values);
  for (int i = 0; i < count; ++i) to[i] = copy[i];
}

inline Ints load_ints(const int32_t* from) { return vld1q_s32(from); }
inline void store_ints(int32_t* to, Ints values) { vst1q_s32(to, values); }
inline void store_bytes(uint8_t* to, Ints values, int64_t count) {
  for (int i = 0; i < LANES && i < count; ++i) to[i] = uint8_t(values[i]);
}

inline Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
inline Floats minus_product(Floats a, Floats b, Floats c) { return vfmsq_f32(c, a, b); }
inline Floats least(Floats a, Floats b) { return vminq_f32(a, b); }
inline Floats most(Floats a, Floats b) { return vmaxq_f32(a, b); }
inline Floats magnitude(Floats values) { return vabsq_f32(values); }
inline Floats root(Floats values) { return vsqrtq_f32(values); }
inline float sum(Floats values) { return vaddvq_f32(values); }
inline float greatest(Floats values) { return vmaxvq_f32(values); }

inline Floats nearest(Floats values) { return vrndnq_f32(values); }
inline Ints to_ints(Floats values) { return vcvtnq_s32_f32(values); }
inline Floats to_floats(Ints values) { return vcvtq_f32_s32(values); }

// With two factors, because a float32 cannot hold 2^128.
inline Floats times_power(Floats values, Floats power) {
  Ints whole = to_ints(power), half = vshrq_n_s32(whole, 1);
  auto factor = [](Ints exponent) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(exponent, all_ints(127)), 23));
  };
  return values * factor(half) * factor(vsubq_s32(whole, half));
}

template <int BITS>
inline Ints shift_right(Ints values) {
  return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(values), vdupq_n_s32(-BITS)));
}

inline Ints with_bits(Ints ints, Ints others, Ints mask) { return ints | (others & mask); }

using Table = uint8x16x4_t;
inline Table table(const float* values) { return vld1q_u8_x4((const uint8_t*)values); }
inline Floats look_up(Table table, Ints places) {
  Ints first = vmulq_s32(vandq_s32(places, all_ints(15)), all_ints(0x04040404));  // a value's bytes
  uint8x16_t bytes = vreinterpretq_u8_s32(vaddq_s32(first, all_ints(0x03020100)));
  return vreinterpretq_f32_u8(vqtbl4q_u8(table, bytes));
}

inline void transpose(Floats (&rows)[LANES]) {
  auto join = [](Floats one, Floats other, bool high) {
    float64x2_t a = vreinterpretq_f64_f32(one), b = vreinterpretq_f64_f32(other);
    return vreinterpretq_f32_f64(high ? vtrn2q_f64(a, b) : vtrn1q_f64(a, b));
  };
  Floats even = vtrn1q_f32(rows[0], rows[1]), odd = vtrn2q_f32(rows[0], rows[1]);
  Floats next_even = vtrn1q_f32(rows[2], rows[3]), next_odd = vtrn2q_f32(rows[2], rows[3]);
  rows[0] = join(even, next_even, false), rows[1] = join(odd, next_odd, false);
  rows[2] = join(even, next_even, true), rows[3] = join(odd, next_odd, true);
}

[[gnu::always_inline]] inline void prefetch(const void* line) { __builtin_prefetch(line, 0, 3); }
[[gnu::always_inline]] inline void prefetch_far(const void* line) { __builtin_prefetch(line, 0, 2); }

}  // namespace quire
