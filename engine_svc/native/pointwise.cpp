// What stands between the matrix products of a decoder: look-ups, norms with their residual, rotary positions, gated
// activations, sums. float, bfloat16 or float16 in memory, float32 in between.
#include <algorithm>
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

// The same of pairs that stand side by side; they come to stand half a head apart.
template <class Value>
inline void rotate_pairs(const Value* pairs, const Value* table, Value* to, int64_t half) {
  float left[LANES], right[LANES];
  for (int64_t i = 0; i < half; i += LANES) {
    int64_t count = std::min<int64_t>(LANES, half - i);
    float both[2 * LANES] = {};
    store(both, load(pairs + 2 * i, 2 * count));
    if (2 * count > LANES) store(both + LANES, load(pairs + 2 * i + LANES, 2 * count - LANES));
    for (int64_t lane = 0; lane < LANES; ++lane) left[lane] = both[2 * lane], right[lane] = both[2 * lane + 1];
    Floats cosine = load(table + i, count), sine = load(table + half + i, count);
    store(to + i, minus_product(load(right), sine, load(left) * cosine), count);
    store(to + half + i, fma(load(right), cosine, load(left) * sine), count);
  }
}

}  // namespace

extern "C" {

// Rows `indices` of a matrix [any, size], times a factor.
void quire_take_rows(int type, const void* matrix, const int64_t* indices, int64_t count, int64_t size, float scale,
                     void* output) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    parallel_for(count, count * size > WORTH_A_THREAD, [=](int64_t row) {
      const Value* from = (const Value*)matrix + indices[row] * size;
      Value* to = (Value*)output + row * size;
      if (scale == 1.0f) return void(std::copy_n(from, size, to));
      for (int64_t i = 0; i < size; i += LANES) store(to + i, load(from + i, size - i) * all(scale), size - i);
    });
  });
}

// hidden [rows, size], rows `stride` values apart; output's `output_stride`, which may be the same memory. With a
// residual [rows, size], residual += hidden first, and the sum is what is normalised.
void quire_rms_norm(int type, const void* hidden, int64_t stride, void* residual, const void* weight, void* output,
                    int64_t output_stride, int64_t rows, int64_t size, float epsilon) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    parallel_for(rows, rows * size > WORTH_A_THREAD, [=](int64_t row) {
      const Value* from = (const Value*)hidden + row * stride;
      if (residual) {
        add_row(from, (Value*)residual + row * size, size);
        from = (const Value*)residual + row * size;
      }
      Value* to = (Value*)output + row * output_stride;
      scale_row(from, inverse_rms(from, size, epsilon), (const Value*)weight, to, size);
    });
  });
}

// to += values, both [rows, size]; values times sigmoid(gates[row]) where there are gates.
void quire_add(int type, void* to, const void* values, const float* gates, int64_t rows, int64_t size) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    parallel_for(rows, rows * size > WORTH_A_THREAD, [=](int64_t row) {
      auto from = (const Value*)values + row * size;
      auto sum = (Value*)to + row * size;
      if (!gates) return add_row(from, sum, size);
      Floats gate = all(1.0f / (1.0f + std::exp(-gates[row])));
      for (int64_t i = 0; i < size; i += LANES)
        store(sum + i, fma(load(from + i, size - i), gate, load(sum + i, size - i)), size - i);
    });
  });
}

// logits [rows, size] become cap * tanh(logit / cap).
void quire_softcap(float* logits, int64_t stride, int64_t rows, int64_t size, float cap) {
  parallel_for(rows, rows * size > WORTH_A_THREAD, [=](int64_t row) {
    float* values = logits + row * stride;
    for (int64_t i = 0; i < size; i += LANES) {
      Floats twice = load(values + i, size - i) * all(2.0f / cap);
      Floats tanh = all(1.0f) - all(2.0f) / (exponential(twice) + all(1.0f));
      store(values + i, select(at_least(twice, twice), tanh * all(cap), twice), size - i);
    }
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

// pairs [tokens, heads, rotary], rotated, to output: tokens and heads so many values apart.
void quire_rotate_pairs(int type, const void* pairs, int64_t token_stride, int64_t head_stride, const void* table,
                        void* output, int64_t output_token_stride, int64_t output_head_stride, int64_t tokens,
                        int64_t heads, int64_t rotary) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    parallel_for(tokens, tokens * heads * rotary > WORTH_A_THREAD, [=](int64_t token) {
      for (int64_t head = 0; head < heads; ++head)
        rotate_pairs((const Value*)pairs + token * token_stride + head * head_stride,
                     (const Value*)table + token * rotary,
                     (Value*)output + token * output_token_stride + head * output_head_stride, rotary / 2);
    });
  });
}

void quire_activate_and_multiply(int type, const void* gate_up, void* output, int64_t rows, int64_t size, int gate,
                                 float slope, float limit) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    parallel_for(rows, rows * size > WORTH_A_THREAD, [=](int64_t row) {
      activate_and_multiply({gate, slope, limit}, (const Value*)gate_up + row * 2 * size, (Value*)output + row * size,
                            size);
    });
  });
}
}
