// Vectors of float32 in registers for any processor, with one file for each instruction set.
//
// bfloat16, float16 and 8-bit numbers exist only in memory: they are converted when loaded, and bfloat16 and float16 are
// rounded (to nearest, ties to even) when stored. A file has to define:
//
//   LANES                      float32 values of a register
//   REGISTERS                  how many of them there are
//   Floats, Ints               registers of LANES float32 or int32; +, -, * and / of the language work on Floats
//   Mask                       a boolean for each lane
//   zero, all, all_ints        the same value in each lane
//   load, store                of float, bf16 and f16; with a count, only of that many first lanes, the others are 0
//   load                       also of int8_t, e5m2, and e4m3 divided by 256; non-finite numbers give undefined values
//   even_halves, odd_halves    of LANES pairs of bf16 as ints, those at even and at odd places
//   pairs, store_pairs         the same, if the level has products of bf16
//   load_ints, store_ints      of int32
//   fma(a, b, c)               a * b + c, rounded once; minus_product(a, b, c) is c - a * b
//   least, most, magnitude     min, max, absolute value
//   root                       square root
//   sum, greatest              over the lanes
//   first(n), between(a, b)    masks: lanes below n; lanes from a on and below b (any values)
//   at_least(a, b)             a mask of a >= b: false if either is NaN
//   bits(mask)                 as an integer, the first lane lowest
//   select(mask, yes, no)
//   nearest                    rounded to integers
//   times_power(x, n)          x * 2^n, for integers n between -127 and 128
//   to_ints, to_floats         conversions; to_ints rounds
//   shift_right<n>             logical shift of ints
//   with_bits(a, b, mask)      a | (b & mask)
//   Table, table               16 float32 values
//   look_up(table, ints)       by each one's lowest 4 bits
//   store_bytes                the lowest byte of each int, of the first `count` lanes
//   transpose                  LANES registers: rows become columns
//   prefetch, prefetch_far     a line into the first-level cache, or the second-level one; always inlined, like functions
//                              that only call these: GCC drops calls of functions that do nothing but prefetch
#pragma once

#include <cstdint>
#include <cstring>

namespace quire {

struct bf16 {
  uint16_t bits;
};

struct f16 {
  uint16_t bits;
};

// 8-bit floating-point numbers with an exponent of 4 or 5 bits.
struct e4m3 {
  uint8_t bits;
};

struct e5m2 {
  uint8_t bits;
};

}  // namespace quire

#if defined(__AVX512F__)
#include "vector_avx512.h"
#elif defined(__AVX2__)
#include "vector_avx2.h"
#elif defined(__ARM_NEON)
#include "vector_neon.h"
#else
#error "There are no vectors for this instruction set."
#endif

namespace quire {

inline Floats load_even(const bf16* pairs) { return even_halves(load_ints((const int32_t*)pairs)); }
inline Floats load_odd(const bf16* pairs) { return odd_halves(load_ints((const int32_t*)pairs)); }

// 2^x for x up to 127, to 2 units in the last place, with a polynomial (Cephes' exp2f) for the fractional part. NaN stays
// NaN, as `most` returns its second operand then.
inline Floats power_of_two(Floats x) {
  x = most(all(-127.0f), x);
  Floats n = nearest(x), r = x - n;
  Floats y = all(1.535336188e-4f);
  y = fma(y, r, all(1.339887440e-3f));
  y = fma(y, r, all(9.618437358e-3f));
  y = fma(y, r, all(5.550332471e-2f));
  y = fma(y, r, all(2.402264791e-1f));
  y = fma(y, r, all(6.931472029e-1f));
  return times_power(fma(y, r, all(1.0f)), n);
}

// e^x to 2 units in the last place: 2^n times a polynomial (Cody and Waite's reduction). NaN stays NaN, as `least` and
// `most` return their second operand then.
inline Floats exponential(Floats x) {
  x = most(all(-87.0f), least(all(88.0f), x));
  Floats n = nearest(x * all(1.44269504f));
  Floats r = minus_product(n, all(-2.12194440e-4f), minus_product(n, all(0.693359375f), x));
  Floats y = all(1.9875691500e-4f);
  y = fma(y, r, all(1.3981999507e-3f));
  y = fma(y, r, all(8.3334519073e-3f));
  y = fma(y, r, all(4.1665795894e-2f));
  y = fma(y, r, all(1.6666665459e-1f));
  y = fma(y, r, all(5.0000001201e-1f));
  y = fma(y * r, r, r + all(1.0f));
  return times_power(y, n);
}

}  // namespace quire
