// Packs weights for the products: see matrix.h.
#include "pack_panel.h"
#include "parallel.h"
#include "product.h"

using namespace quire;

namespace {

constexpr int64_t INT8 = 3;            // in addition to the types in types.h

template <class Type>
int64_t packed_values(int64_t outputs, int64_t size) {
  return panels_of(outputs) * PANEL * steps_of<Type>(size) * Type::GROUP;
}

}  // namespace

extern "C" {

int64_t quire_panel() { return PANEL; }

// The number of values of a packed weight.
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

// Quantizes values [rows, size] to int8 so that each row's greatest value becomes 127; scale [rows].
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
