// Packs weights for the products: see matrix.h.
#include "parallel.h"
#include "product.h"

using namespace quire;

namespace {

constexpr int64_t INT8 = 3;            // beside the types that types.h numbers
constexpr int64_t UNITS_PER_BLOCK = 64;  // groups of a row that are read in a row, while what is written stays in the cache

// Up to PANEL rows [rows, size] into one panel, as group_at says; outputs and values that are not there are zeros.
template <class Type, class Value>
void pack_panel(const Value* from, int64_t rows, int64_t size, Value* panel) {
  struct Group {
    Value values[Type::GROUP];
  };
  auto to = (Group*)panel;
  int64_t steps = steps_of<Type>(size), whole = size / Type::GROUP;
  for (int64_t begin = 0; begin < steps; begin += UNITS_PER_BLOCK) {
    int64_t end = std::min(begin + UNITS_PER_BLOCK, steps), there = std::min(end, whole);
    for (int64_t n = 0; n < PANEL; ++n) {
      int64_t k = begin;
      if (n < rows)
        for (auto row = (const char*)(from + n * size); k < there; ++k)
          std::memcpy(&to[group_at<Type>(k, n)], row + k * sizeof(Group), sizeof(Group));
      for (; k < end; ++k) {
        Group& last = to[group_at<Type>(k, n)] = Group{};
        for (int64_t i = k * Type::GROUP; n < rows && i < size; ++i)
          if (i < (k + 1) * Type::GROUP) last.values[i % Type::GROUP] = from[n * size + i];
      }
    }
  }
}

template <class Type>
int64_t packed_values(int64_t outputs, int64_t size) {
  return panels_of(outputs) * PANEL * steps_of<Type>(size) * Type::GROUP;
}

}  // namespace

extern "C" {

int64_t quire_panel() { return PANEL; }

// Values that a weight of a type has when it is packed.
int64_t quire_packed_values(int type, int64_t outputs, int64_t size) {
  int64_t count = packed_values<Int8Groups>(outputs, size);
  if (type != INT8) with_type(type, [&](auto value) { count = packed_values<Groups<decltype(value)>>(outputs, size); });
  return count;
}

// weight [outputs, size].
void quire_pack(int type, const void* weight, int64_t outputs, int64_t size, void* packed) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    using Type = Groups<Value>;
    parallel_for(panels_of(outputs), [=](int64_t index) {
      pack_panel<Type>((const Value*)weight + index * PANEL * size, std::min<int64_t>(PANEL, outputs - index * PANEL),
                       size, (Value*)packed + index * PANEL * steps_of<Type>(size) * Type::GROUP);
    });
  });
}

// values [rows, size] to int8, each row to 127 of its greatest value; scale [rows], what 1 stands for.
void quire_quantize_rows(int type, const void* values, int64_t rows, int64_t size, int8_t* quantized, float* scale) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    parallel_for(rows, [=](int64_t row) {
      scale[row] = quantize_row((const Value*)values + row * size, size, quantized + row * size, 0);
    });
  });
}

// weight [outputs, size]; correction [packed outputs]: see Result.
void quire_pack_int8(const int8_t* weight, int64_t outputs, int64_t size, int8_t* packed, int32_t* correction) {
  parallel_for(panels_of(outputs), [=](int64_t index) {
    int64_t first = index * PANEL, rows = std::min<int64_t>(PANEL, outputs - first);
    const int8_t* from = weight + first * size;
    for (int64_t n = 0; n < PANEL; ++n) {
      int32_t sum = 0;
      for (int64_t k = 0; n < rows && k < size; ++k) sum += from[n * size + k];
      correction[first + n] = Int8Groups::OFFSET * sum;
    }
    pack_panel<Int8Groups>(from, rows, size, packed + first * steps_of<Int8Groups>(size) * Int8Groups::GROUP);
  });
}
}
