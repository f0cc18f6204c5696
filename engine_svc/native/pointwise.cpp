// What stands between the matrix products of a decoder layer: norms with their residual, rotary positions, gated activations.
// float, bfloat16 or float16 in memory, float32 in between.
#include <cmath>

#include "activation.h"
#include "parallel.h"
#include "types.h"

using namespace quire;

namespace {

constexpr int64_t WORTH_A_THREAD = 1 << 15;  // values: below, waking a thread costs more than it saves

// The factor that makes the root mean square of a row 1.
template <class Value>
inline float inverse_rms(const Value* row, int64_t size, float epsilon) {
  Floats squares = zero();
  for (int64_t i = 0; i < size; i += LANES) {
    Floats value = load(row + i, size - i);
    squares = fma(value, value, squares);
  }
  return 1.0f / std::sqrt(sum(squares) / float(size) + epsilon);
}

template <class Value>
inline void scale_row(const Value* row, float factor, const Value* weight, Value* to, int64_t size) {
  for (int64_t i = 0; i < size; i += LANES)
    store(to + i, load(row + i, size - i) * all(factor) * load(weight + i, size - i), size - i);
}

template <class Value>
inline void add_row(const Value* row, Value* to, int64_t size) {
  for (int64_t i = 0; i < size; i += LANES) store(to + i, load(row + i, size - i) + load(to + i, size - i), size - i);
}

// Rotates the halves of one head against each other; `table` holds the cosines, then the sines.
template <class Value>
inline void rotate(Value* head, const Value* table, int64_t half) {
  for (int64_t i = 0; i < half; i += LANES) {
    Floats cosine = load(table + i, half - i), sine = load(table + half + i, half - i);
    Floats left = load(head + i, half - i), right = load(head + half + i, half - i);
    store(head + i, minus_product(right, sine, left * cosine), half - i);
    store(head + half + i, fma(right, cosine, left * sine), half - i);
  }
}

}  // namespace

extern "C" {

// hidden [rows, size]. With a residual, residual += hidden first, and the sum is what is normalised.
void quire_rms_norm(int type, const void* hidden, void* residual, const void* weight, void* output, int64_t rows,
                    int64_t size, float epsilon) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    parallel_for(rows, rows * size > WORTH_A_THREAD, [=](int64_t row) {
      const Value* from = (const Value*)hidden + row * size;
      if (residual) {
        add_row(from, (Value*)residual + row * size, size);
        from = (const Value*)residual + row * size;
      }
      scale_row(from, inverse_rms(from, size, epsilon), (const Value*)weight, (Value*)output + row * size, size);
    });
  });
}

// heads [tokens, heads, dim], tokens `stride` values apart, changed in place: the first `num_query` heads are queries,
// the next `num_key` keys. Norms (null: none) come before the rotation of each head's first `rotary` values.
// table [tokens, 2, rotary / 2].
void quire_rotate(int type, void* heads, int64_t stride, const void* table, const void* query_norm,
                  const void* key_norm, float epsilon, int64_t tokens, int64_t num_query, int64_t num_key,
                  int64_t dim, int64_t rotary) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    parallel_for(tokens, tokens * stride > WORTH_A_THREAD, [=](int64_t token) {
      for (int64_t index = 0; index < num_query + num_key; ++index) {
        Value* head = (Value*)heads + token * stride + index * dim;
        auto norm = (const Value*)(index < num_query ? query_norm : key_norm);
        if (norm) scale_row(head, inverse_rms(head, dim, epsilon), norm, head, dim);
        rotate(head, (const Value*)table + token * rotary, rotary / 2);
      }
    });
  });
}

void quire_activate_and_multiply(int type, const void* gate_up, void* output, int64_t rows, int64_t size, int gelu) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    parallel_for(rows, rows * size > WORTH_A_THREAD, [=](int64_t row) {
      const Value* from = (const Value*)gate_up + row * 2 * size;
      Value* to = (Value*)output + row * size;
      gelu ? activate_and_multiply<true>(from, to, size) : activate_and_multiply<false>(from, to, size);
    });
  });
}
}
