// Prepares rows of inputs for products: in a type's Input, filled up to the length of packed weights.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

#include "coded.h"
#include "groups_int8.h"

namespace quire {

// The number of groups of a packed weight over k.
template <class Type>
inline int64_t steps_of(int64_t size) {
  constexpr int64_t WHOLE = Type::GROUP * Type::ALIGNMENT;
  return (size + WHOLE - 1) / WHOLE * Type::ALIGNMENT;
}

// The stride between rows of inputs, in values. Tiles read 16 rows at a time; with an odd number of lines between them,
// these are in different sets of a cache.
template <class Type>
inline int64_t stride_of(int64_t size) {
  int64_t values = steps_of<Type>(size) * Type::GROUP;
  if constexpr (!Type::TILES) return values;
  constexpr int64_t OF_A_LINE = LINE / sizeof(typename Type::Input);
  return ((values + OF_A_LINE - 1) / OF_A_LINE | 1) * OF_A_LINE;
}

// The scale of a row whose greatest value becomes 127; NaN for a row with infinite values or NaN.
template <class Value>
inline float scale_of(const Value* row, int64_t size) {
  constexpr int AT_ONCE = 4;  // independent accumulators
  Floats greatest_yet[AT_ONCE], strange[AT_ONCE];
  for (int i = 0; i < AT_ONCE; ++i) greatest_yet[i] = strange[i] = zero();
  auto look = [&](int i, Floats value) {
    greatest_yet[i] = most(greatest_yet[i], magnitude(value)), strange[i] = fma(value, zero(), strange[i]);
  };
  int64_t k = 0;
  for (; k + AT_ONCE * LANES <= size; k += AT_ONCE * LANES)
#pragma GCC unroll 4
    for (int i = 0; i < AT_ONCE; ++i) look(i, load(row + k + i * LANES));
  for (; k < size; k += LANES) look(0, load(row + k, size - k));
  Floats most_of_all = most(most(greatest_yet[0], greatest_yet[1]), most(greatest_yet[2], greatest_yet[3]));
  return greatest(most_of_all) / 127.0f + sum(strange[0] + strange[1] + (strange[2] + strange[3]));
}

// Quantizes a row symmetrically, so that its greatest value becomes 127, and adds `offset`. Returns the scale; NaN for a
// row with infinite values or NaN, so that all results of it are NaN.
template <class Value, class Quantized>
inline float quantize_row(const Value* row, int64_t size, Quantized* to, int offset) {
  float scale = scale_of(row, size);
  Floats inverse = all(scale > 0 ? 1.0f / scale : 0.0f), raised = all(float(offset));
  auto put = [&](int64_t k, Floats value, int64_t count) {
    Ints whole = to_ints(nearest(value * inverse) + raised);
    if constexpr (sizeof(Quantized) == 1) {
      store_bytes((uint8_t*)to + k, whole, count);
    } else {
      int32_t values[LANES];
      store_ints(values, whole);
      for (int64_t i = 0; i < count; ++i) to[k + i] = Quantized(values[i]);
    }
  };
  int64_t k = 0;
  for (; k + LANES <= size; k += LANES) put(k, load(row + k), LANES);
  if (k < size) put(k, load(row + k, size - k), size - k);
  return scale;
}

template <class Value, class Input>
inline void copy_row(const Value* row, int64_t size, Input* to) {
  for (int64_t k = 0; k < size; k += LANES) store(to + k, load(row + k, size - k), size - k);
}

// Prepares one row, filled up to `padded` values with zeros. Returns its scale.
template <class Type, class Value>
inline float prepare_row(const Value* row, int64_t size, typename Type::Input* to, int64_t padded) {
  std::fill(to + size, to + padded, typename Type::Input{});
  if constexpr (std::is_same_v<typename Type::Total, int32_t>) {
    return quantize_row(row, size, to, Type::OFFSET);
  } else {
    copy_row(row, size, to);
    return 1.0f;
  }
}

// Whether a task's rows can be arranged in strips, as matrix registers take them for coded weights.
template <class Type>
constexpr bool IN_STRIPS = IS_CODED<Type> && Type::TILES;
constexpr int64_t STRIP = 16;
constexpr int64_t NEAR_ROWS_BYTES = 6 << 10;

template <class Type>
inline bool in_strips(const CodedForm& form) {
  return IN_STRIPS<Type> && form.codes != INT8_CODES;
}

// How many rows, `stride` values apart, can be read directly from the caller's memory. Tiles read 16 rows at a time, which
// should be whole lines, and not so far apart that all are in the same sets of a cache.
template <class Type>
inline int64_t rows_as_they_come(const CodedForm& form, const void* rows, int64_t stride) {
  int64_t bytes = stride * sizeof(typename Type::Input);
  if (in_strips<Type>(form)) return 1;
  if (!Type::TILES || (uintptr_t(rows) % LINE == 0 && bytes % LINE == 0 && bytes <= NEAR_ROWS_BYTES)) return INT64_MAX;
  return 4 * STRIP;
}

// Arranges a strip of `count` rows in place: pairs of values [count, size] become [size, count].
template <class Input>
void arrange_strip(Input* rows, int64_t count, int64_t size) {
  struct Pair {
    Input values[2];
  };
  static_assert(sizeof(Pair) == sizeof(float));
  std::unique_ptr<float[]> pairs(new float[count * size]);  // pairs are moved as floats
  std::memcpy(pairs.get(), rows, count * size * sizeof(Pair));
  for (int64_t k = 0; k < size; k += LANES) {
    Floats square[LANES];
    for (int64_t row = 0; row < LANES; ++row) square[row] = row < count ? load(pairs.get() + row * size + k) : zero();
    transpose(square);
    for (int64_t i = 0; i < LANES; ++i) store((float*)rows + (k + i) * count, square[i], count);
  }
}

struct Freed {
  void operator()(void* memory) const { std::free(memory); }
};

// Memory aligned to a line: matrix registers take five times as long to load rows that cross lines. Not initialized, and
// malloc keeps such pieces for the next call.
template <class Value>
std::unique_ptr<Value[], Freed> whole_lines(int64_t count) {
  void* memory = std::aligned_alloc(LINE, (count * sizeof(Value) + LINE - 1) / LINE * LINE);
  if (!memory) throw std::bad_alloc();
  return std::unique_ptr<Value[], Freed>((Value*)memory);
}

// Prepared rows in their own memory.
template <class Type>
struct Inputs {
  int64_t stride;
  std::unique_ptr<typename Type::Input[], Freed> values;
  std::unique_ptr<float[]> scale;

  Inputs(int64_t rows, int64_t size)
      : stride(stride_of<Type>(size)), values(whole_lines<typename Type::Input>(rows * stride)),
        scale(new float[rows]) {}

  // Prepares a row; if an order is given, its i-th value is that of input order[i].
  template <class Value>
  void prepare(int64_t row, const Value* from, int64_t size, const int64_t* order = nullptr) {
    std::unique_ptr<Value[]> ordered(order ? new Value[size] : nullptr);
    for (int64_t k = 0; order && k < size; ++k) ordered[k] = from[order[k]];
    scale[row] = prepare_row<Type>(order ? ordered.get() : from, size, values.get() + row * stride, stride);
  }

  // Arranges prepared rows as a strip if the type needs strips: up to STRIP rows, counted from a task's first row on.
  void arrange(int64_t first, int64_t count) {
    if constexpr (IN_STRIPS<Type>)
      if (count > 1) arrange_strip(values.get() + first * stride, count, stride / 2);
  }
};

}  // namespace quire
