// Compares each function of vector.h with plain C++, and the groups of a product with whole numbers.
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <type_traits>

#include "groups_int8.h"

using namespace quire;

namespace {

int failures = 0;

void check(bool good, const char* what, double found, double expected) {
  if (good) return;
  ++failures;
  std::printf("%s: %.9g, and not %.9g\n", what, found, expected);
}

void equal(float found, float expected, const char* what) {
  check(found == expected || (std::isnan(found) && std::isnan(expected)), what, found, expected);
}

struct Lanes {
  float values[LANES];
  explicit Lanes(Floats vector) { store(values, vector); }
  float operator[](int lane) const { return values[lane]; }
};

float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float widened(float value) { return value; }
float widened(bf16 value) { return as_float(uint32_t(value.bits) << 16); }
float widened(f16 value) {
  int exponent = value.bits >> 10 & 31, fraction = value.bits & 1023;
  float size = exponent ? std::ldexp(1024.0f + fraction, exponent - 25) : std::ldexp(float(fraction), -24);
  if (exponent == 31) size = fraction ? NAN : INFINITY;
  return value.bits >> 15 ? -size : size;
}

// Whether the stored value is the type's nearest one, and in a tie, the one with even bits.
template <class Value>
bool is_nearest(float value, Value stored) {
  float found = widened(stored);
  for (int step : {-1, 1}) {
    Value other{uint16_t(stored.bits + step)};
    double mine = std::fabs(double(found) - value), its = std::fabs(double(widened(other)) - value);
    if (its < mine || (its == mine && stored.bits & 1)) return false;
  }
  return true;
}

// Loads and stores a type, whole and with every number of values; nothing beyond may be read into lanes or written.
template <class Value>
void memory(const char* what) {
  Value from[LANES], to[LANES + 1];
  for (int i = 0; i < LANES; ++i) {
    Floats value = all(float(i) - 2.5f);
    store(from + i, value, 1);
    equal(widened(from[i]), float(i) - 2.5f, what);
  }
  for (int count = 0; count <= LANES + 1; ++count) {
    std::memset(to, 0, sizeof(to));
    Lanes lanes(load(from, count));
    store(to, load(from), count);
    for (int i = 0; i < LANES; ++i) {
      equal(lanes[i], i < count ? widened(from[i]) : 0.0f, what);
      equal(widened(to[i]), i < count ? widened(from[i]) : 0.0f, what);
    }
    equal(widened(to[LANES]), 0.0f, what);
  }
  Lanes lanes(load(from));
  for (int i = 0; i < LANES; ++i) equal(lanes[i], widened(from[i]), what);
}

template <class Value>
void rounding(float most_exact, const char* what) {
  uint32_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 1664525 + 1013904223;
    float value = as_float(state);
    if (i % 3 == 0) value = as_float(as_bits(value) & ~0xfffu);  // ties and exact values
    if (std::isnan(value) || std::fabs(value) > most_exact || std::fabs(value) < 1e-4f) continue;
    Value stored[LANES];
    store(stored, all(value));
    check(is_nearest(value, stored[LANES - 1]), what, widened(stored[LANES - 1]), value);
  }
  for (float value : {NAN, INFINITY, -INFINITY, 0.0f, -0.0f}) {
    Value stored[LANES];
    store(stored, all(value));
    equal(widened(stored[0]), value, what);
  }
}

void arithmetic() {
  float a[LANES], b[LANES], c[LANES];
  for (int i = 0; i < LANES; ++i) a[i] = float(i * 7 % 5) - 1.5f, b[i] = 3.0f - float(i), c[i] = 0.25f * float(i + 1);
  Floats x = load(a), y = load(b), z = load(c);
  Lanes plus(x + y), minus(x - y), times(x * y), by(x / z), fused(fma(x, y, z)), less(minus_product(x, y, z));
  Lanes low(least(x, y)), high(most(x, y)), size(magnitude(y)), whole(nearest(x)), back(to_floats(to_ints(x)));
  Lanes chosen(select(at_least(x, y), x, y));
  float total = 0, top = a[0];
  uint32_t mask = 0;
  for (int i = 0; i < LANES; ++i) {
    equal(plus[i], a[i] + b[i], "+"), equal(minus[i], a[i] - b[i], "-"), equal(times[i], a[i] * b[i], "*");
    equal(by[i], a[i] / c[i], "/"), equal(fused[i], std::fma(a[i], b[i], c[i]), "fma");
    equal(less[i], std::fma(-a[i], b[i], c[i]), "minus_product");
    equal(low[i], std::fmin(a[i], b[i]), "least"), equal(high[i], std::fmax(a[i], b[i]), "most");
    equal(size[i], std::fabs(b[i]), "magnitude"), equal(whole[i], std::nearbyint(a[i]), "nearest");
    equal(back[i], std::nearbyint(a[i]), "to_ints"), equal(chosen[i], std::fmax(a[i], b[i]), "at_least");
    total += a[i], top = std::fmax(top, a[i]), mask |= uint32_t(a[i] >= b[i]) << i;
  }
  equal(sum(x), total, "sum"), equal(greatest(x), top, "greatest");
  equal(float(bits(at_least(x, y))), float(mask), "bits"), equal(float(bits(at_least(all(NAN), x))), 0, "at_least NaN");
  for (int begin = -1; begin <= LANES + 1; ++begin)
    for (int end = -1; end <= LANES + 1; ++end) {
      uint32_t expected = 0;
      for (int i = 0; i < LANES; ++i) expected |= uint32_t(i >= begin && i < end) << i;
      equal(float(bits(between(begin, end))), float(expected), "between");
    }
  for (int power = -127; power <= 128; ++power) {
    equal(Lanes(times_power(all(0.75f), all(float(power))))[0], std::ldexp(0.75f, power), "times_power");
    float value = 0.6875f * float(power), exact = std::exp(std::fmin(std::fmax(value, -87.0f), 88.0f));
    float found = Lanes(exponential(all(value)))[LANES - 1];
    check(std::fabs(found - exact) <= 4e-7f * exact, "exponential", found, exact);
    exact = std::exp2(std::fmin(value, 127.0f)), found = Lanes(power_of_two(all(std::fmin(value, 127.0f))))[LANES - 1];
    check(value < -127 ? found < 1e-38f : std::fabs(found - exact) <= 4e-7f * exact, "power_of_two", found, exact);
  }
  int32_t ints[LANES];
  uint8_t bytes[LANES + 1] = {};
  for (int i = 0; i < LANES; ++i) ints[i] = 1000 + 77 * i;
  store_bytes(bytes, load_ints(ints), LANES - 1);
  for (int i = 0; i <= LANES; ++i) equal(bytes[i], i < LANES - 1 ? uint8_t(ints[i]) : 0, "store_bytes");
}

void pairs() {
  bf16 from[2 * LANES];
  for (int i = 0; i < 2 * LANES; ++i) from[i].bits = uint16_t(as_bits(float(i) - 3.0f) >> 16);
  Lanes even(load_even(from)), odd(load_odd(from));
  for (int i = 0; i < LANES; ++i) equal(even[i], 2.0f * i - 3.0f, "load_even"), equal(odd[i], 2.0f * i - 2.0f, "load_odd");
}

void codes() {
  uint8_t bytes[LANES];
  for (int code = 0; code < 256; ++code) {
    std::memset(bytes, code, sizeof(bytes));
    float found[] = {Lanes(load((const int8_t*)bytes))[LANES - 1], Lanes(load((const e4m3*)bytes))[LANES - 1],
                     Lanes(load((const e5m2*)bytes))[LANES - 1]};
    int exponent = code >> 3 & 15, fraction = code & 7;
    float size = exponent ? std::ldexp(8.0f + fraction, exponent - 10) : std::ldexp(float(fraction), -9);
    equal(found[0], float(int8_t(code)), "int8");
    if ((code & 127) != 127) equal(found[1] * 256, code >> 7 ? -size : size, "e4m3");
    if ((code & 124) != 124) equal(found[2], widened(f16{uint16_t(code << 8)}), "e5m2");
  }
  float numbers[16];
  int32_t places[LANES];
  for (int i = 0; i < 16; ++i) numbers[i] = 0.3f * float(i) - 1;
  for (int i = 0; i < LANES; ++i) places[i] = int32_t(0x9e3779b9u * uint32_t(i + 1));
  Lanes low(look_up(table(numbers), load_ints(places))), high(look_up(table(numbers), shift_right<28>(load_ints(places))));
  for (int i = 0; i < LANES; ++i) {
    equal(low[i], numbers[places[i] & 15], "look_up");
    equal(high[i], numbers[uint32_t(places[i]) >> 28], "shift_right");
  }
}

template <class Type>
void stored_pairs() {
  if constexpr (Type::GROUP == 2 && std::is_same_v<typename Type::Wide, Type>) {
    float even[LANES], odd[LANES];
    typename Type::Stored to[2 * LANES];
    for (int i = 0; i < LANES; ++i) even[i] = float(i) - 3.5f, odd[i] = 2.0f * float(i);
    store_pairs(to, load(even), load(odd));
    for (int i = 0; i < LANES; ++i) {
      equal(widened(to[2 * i]), even[i], "store_pairs");
      equal(widened(to[2 * i + 1]), odd[i], "store_pairs");
    }
  }
}

template <class Type>
void pairs_of_tables() {
  if constexpr (Type::GROUP == 2 && !Type::TILES && std::is_same_v<typename Type::Wide, Type>) {
    typename Type::Stored to[2 * LANES];
    float numbers[16];
    int32_t places[LANES];
    for (int i = 0; i < 16; ++i) numbers[i] = float(i) - 7.5f;
    for (int i = 0; i < LANES; ++i) places[i] = int32_t(0x9e3779b9u * uint32_t(i + 1));
    auto pairs = Type::look_up(Type::table(numbers), load_ints(places));
    std::memcpy(to, &pairs, sizeof(pairs));
    for (int i = 0; i < 2 * LANES; ++i)
      equal(widened(to[i]), numbers[uint32_t(places[i / 2]) >> i % 2 * 16 & 15], "look_up pairs");
  }
}

// Multiplies one group of each output by that of one row. Whole numbers are exact in whatever order they are added.
template <class Type>
void group(float greatest_value, const char* what) {
  if constexpr (!Type::TILES) {
    typename Type::Stored weights[LANES * Type::GROUP];
    typename Type::Input inputs[Type::GROUP];
    float exact[LANES] = {}, found[LANES];
    auto value = [=](int i) { return i % 3 ? greatest_value - float(i % 2) : -greatest_value; };
    auto put = [](auto* to, float number) {
      if constexpr (std::is_same_v<typename Type::Total, int32_t>)
        *to = std::decay_t<decltype(*to)>(number);
      else
        store(to, all(number), 1);
    };
    for (int k = 0; k < Type::GROUP; ++k) put(inputs + k, value(k + 1) + float(Type::OFFSET));
    for (int i = 0; i < LANES * Type::GROUP; ++i) {
      put(weights + i, value(i));
      exact[i / Type::GROUP] += value(i) * (value(i % Type::GROUP + 1) + float(Type::OFFSET));
    }
    typename Type::Sum sums{};
    for (int part = 0; part < Type::PARTS; ++part)
      sums = Type::add(sums, Type::input(inputs + part * Type::GROUP / Type::PARTS), Type::weight(weights, part));
    if constexpr (std::is_same_v<typename Type::Total, int32_t>)
      store(found, to_floats(sums));
    else
      store(found, sums);
    for (int i = 0; i < LANES; ++i) equal(found[i], exact[i], what);
  }
}

}  // namespace

int main() {
  memory<float>("float"), memory<bf16>("bf16"), memory<f16>("f16");
  rounding<bf16>(1e38f, "to bf16"), rounding<f16>(65000.0f, "to f16");
  arithmetic(), pairs(), codes(), stored_pairs<Groups<bf16>>(), pairs_of_tables<Groups<bf16>>();
  group<Groups<float>>(100, "groups of float"), group<Groups<bf16>>(100, "groups of bf16");
  group<Groups<f16>>(100, "groups of f16"), group<Int8Groups>(127, "groups of int8");
  return failures != 0;
}
