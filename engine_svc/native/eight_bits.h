// 8-bit floating-point numbers, as the cache may hold them.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "vector.h"

namespace quire {

// The byte of the nearest number of a format, ties to even. Values out of range become the greatest number; NaN stays NaN.
// The format has MANTISSA bits and an exponent with BIAS; LEAST is the least normal number.
template <int MANTISSA, int BIAS>
inline uint8_t narrow(float value, float greatest) {
  constexpr int DROPPED = 23 - MANTISSA;
  constexpr uint32_t HALF = (1u << (DROPPED - 1)) - 1;
  constexpr float LEAST = 1.0f / (1 << (BIAS - 1)), STEPS = float(1 << (BIAS - 1 + MANTISSA)), ROUNDING = 12582912.0f;
  float size = std::fabs(value);
  size = size < greatest ? size : greatest;
  float counted = size * STEPS + ROUNDING;  // below LEAST, numbers are multiples of a step
  uint32_t bits, count, sign;
  std::memcpy(&bits, &size, 4), std::memcpy(&count, &counted, 4), std::memcpy(&sign, &value, 4);
  uint32_t rounded = (bits + HALF + (bits >> DROPPED & 1) - (uint32_t(127 - BIAS) << 23)) >> DROPPED;
  uint32_t code = value != value ? 0x7f : size < LEAST ? count - 0x4b400000u : rounded;
  return uint8_t((sign >> 24 & 0x80) | code);
}

inline e4m3 narrow_to(e4m3, float value) { return {narrow<3, 7>(value, 448.0f)}; }
inline e5m2 narrow_to(e5m2, float value) { return {narrow<2, 15>(value, 57344.0f)}; }

// e4m3 has a single code for NaN, the one after 448.
inline Floats widen(const e4m3* from) {
  Floats value = load(from) * all(256.0f);
  return select(at_least(magnitude(value), all(480.0f)), all(std::numeric_limits<float>::quiet_NaN()), value);
}
inline Floats widen(const e5m2* from) { return load(from); }

// A number of either format, which is known from elsewhere.
enum class EightBits : uint8_t {};

// The format of a cache; 0 means the model's own type.
constexpr int CACHED_E4M3 = 1, CACHED_E5M2 = 2;

// Converts `count` numbers of a format, a multiple of 16, to a type that represents each exactly.
template <class Value>
inline void widen_all(int cached, const EightBits* from, int64_t count, Value* to) {
  auto widen_those = [&](auto* numbers) {
    for (int64_t i = 0; i < count; i += LANES) store(to + i, widen(numbers + i));
  };
  cached == CACHED_E4M3 ? widen_those((const e4m3*)from) : widen_those((const e5m2*)from);
}

// Converts a row of values to the type of the cache.
template <class Byte, class Value>
inline void narrow_row(const Value* from, int64_t count, Byte* to) {
  for (int64_t i = 0; i < count; i += LANES) {
    float wide[LANES];
    store(wide, load(from + i));
    for (int lane = 0; lane < LANES; ++lane) to[i + lane] = narrow_to(Byte{}, wide[lane]);
  }
}

// Calls `call` with a value of the cache's element type; 0 means `Stored` itself.
template <class Stored, class Call>
void with_cached(int cached, Stored, const Call& call) {
  switch (cached) {
    case 0: return call(Stored{});
    case CACHED_E4M3: return call(e4m3{});
    case CACHED_E5M2: return call(e5m2{});
  }
}

}  // namespace quire
