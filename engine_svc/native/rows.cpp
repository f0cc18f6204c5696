// Looks up rows of matrices, plain or packed for products.
#include <algorithm>
#include <cmath>
#include <memory>

#include "codes.h"
#include "parallel.h"
#include "product.h"
#include "recordable.h"
#include "types.h"

using namespace quire;

namespace {

constexpr int64_t WORTH_A_THREAD = 1 << 15;  // values

// The rows to look up in a matrix whose first row has index `first`.
struct Wanted {
  const int64_t* indices;
  int64_t count, first, rows, size;
  float factor;
};

// output [count, size]: each row, as written by `read`, times the factor; zeros for rows outside of the matrix.
template <class Value, class Read>
void look_up_rows(const Wanted& wanted, Value* output, const Read& read) {
  parallel_for(wanted.count, wanted.count * wanted.size > WORTH_A_THREAD, [=](int64_t i) {
    int64_t index = wanted.indices[i] - wanted.first, size = wanted.size;
    Value* to = output + i * size;
    if (index < 0 || index >= wanted.rows) return void(std::fill_n(to, size, Value{}));
    read(index, to);
    if (wanted.factor == 1.0f) return;
    for (int64_t k = 0; k < size; k += LANES) store(to + k, load(to + k, size - k) * all(wanted.factor), size - k);
  });
}

// Unpacks the n-th output of a panel, [size].
template <class Type, class Value>
void unpack_row(const Value* panel, int64_t n, int64_t size, Value* to) {
  constexpr int64_t GROUP = Type::GROUP;
  auto group = [&](int64_t k) { return panel + group_at<Type>(k / GROUP, n) * GROUP; };
  int64_t whole = size / GROUP * GROUP;
  for (int64_t k = 0; k < whole; k += GROUP) std::memcpy(to + k, group(k), GROUP * sizeof(Value));
  std::copy_n(group(whole), size - whole, to + whole);
}

// The same for a compressed panel.
inline void decompress_row(const char* matrix, const char* panel, int64_t n, int64_t size, bf16* to) {
  constexpr int64_t GROUP = Bf16Groups::GROUP;
  Steps steps(matrix, panel);
  Ints groups[VECTORS];
  for (int64_t k = 0, read = 0; k < size; k += GROUP) {
    int64_t place = group_at<Bf16Groups>(k / GROUP, n);
    for (; read <= place / PANEL; ++read) steps.read<0>(groups);
    std::memcpy(to + k, (const bf16*)groups + place % PANEL * GROUP, std::min(GROUP, size - k) * sizeof(bf16));
  }
}

template <class Value>
void widen_int8_row(const int8_t* panel, int64_t n, int64_t size, float scale, Value* to) {
  std::unique_ptr<int8_t[]> row(new int8_t[size + LANES]);  // whole vectors are loaded
  unpack_row<Int8Groups>(panel, n, size, row.get());
  for (int64_t k = 0; k < size; k += LANES) store(to + k, load(row.get() + k) * all(scale), size - k);
}

// Dequantizes the codes of a panel's n-th output, [size].
template <class Value>
void widen_row(const char* chunk, const CodedForm& form, int64_t n, int64_t size, Value* to) {
  bool raised = form.codes == E4M3_CODES || form.codes == E4M3_TABLES;  // undoes the factor in the scales
  Scales scales(form);
  for (int64_t begin = 0; begin < size; begin += CHUNK, chunk += form.chunk_bytes()) {
    uint8_t codes[CHUNK];
    float numbers[CHUNK];
    unpack_codes<CodedGroups<Value>::TILES>(scales.read(chunk), form, n, codes);
    for (int64_t k = 0; k < CHUNK; ++k) {
      float number = form.grid[codes[k]] * (raised ? 1.0f / 256 : 1.0f);
      numbers[k] = std::fma(number, scales.scale[k / form.span][n], scales.offset[k / form.span][n]);
    }
    int64_t there = std::min(CHUNK, size - begin);
    for (int64_t k = 0; k < there; k += LANES) store(to + begin + k, load(numbers + k), there - k);
  }
}

}  // namespace

extern "C" {

// output [count, size]: rows `indices` of a matrix [rows, size] whose first one has the number `first`, times a factor;
// zeros for those that it does not have. `stride`: values from one row of the matrix to the next.
void quire_take_rows(int type, const void* matrix, const int64_t* indices, int64_t count, int64_t first, int64_t rows,
                     int64_t size, int64_t stride, float factor, void* output) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    look_up_rows({indices, count, first, rows, size, factor}, (Value*)output, [=](int64_t index, Value* to) {
      std::copy_n((const Value*)matrix + index * stride, size, to);
    });
  });
}

// The same for a packed weight [rows, size]: its dequantized rows, rounded to the type.
void quire_packed_rows(int type, const Packed* packed, const int64_t* indices, int64_t count, int64_t first,
                       int64_t rows, int64_t size, float factor, void* output) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    with_groups<Value>(*packed, [=](auto groups) {
      using Type = typename decltype(groups)::Type;
      look_up_rows({indices, count, first, rows, size, factor}, (Value*)output, [=](int64_t index, Value* to) {
        auto panel = operands<Type>(nullptr, 0, *packed, 0, rows, size).panel(index / PANEL);
        if constexpr (IS_CODED<Type>)
          widen_row(panel, packed->form, index % PANEL, size, to);
        else if constexpr (IS_COMPRESSED<Type>)
          decompress_row((const char*)packed->weight, panel, index % PANEL, size, to);
        else if constexpr (std::is_same_v<Type, Int8Groups>)
          widen_int8_row(panel, index % PANEL, size, packed->scale[index], to);
        else
          unpack_row<Type>(panel, index % PANEL, size, to);
      });
    });
  });
}
}

RECORDABLE(take_rows)
RECORDABLE(packed_rows)
