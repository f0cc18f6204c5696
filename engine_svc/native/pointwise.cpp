// The operations between a decoder's matrix products: norms with residuals, rotary embedding, gated activations, sums.
// Tensors are float32, bfloat16 or float16; arithmetic is float32.
#include <algorithm>
#include <cmath>

#include "activation.h"
#include "parallel.h"
#include "recordable.h"
#include "types.h"

using namespace quire;

namespace {

constexpr int64_t WORTH_A_THREAD = 1 << 15;  // values: below, waking a thread costs more than it saves
constexpr int64_t BYTES_WORTH_A_THREAD = 1 << 18;

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

// Normalizes a row to mean 0 and deviation 1, multiplies it by a weight, and adds a bias if there is one.
template <class Value>
inline void layer_norm(const Value* row, const Value* weight, const Value* bias, Value* to, int64_t size,
                       float epsilon) {
  Floats total = zero();
  for (int64_t i = 0; i < size; i += LANES) total = total + load(row + i, size - i);
  Floats mean = all(sum(total) / float(size)), squares = zero();
  for (int64_t i = 0; i < size; i += LANES) {
    Floats deviation = select(first(size - i), load(row + i, size - i) - mean, zero());
    squares = fma(deviation, deviation, squares);
  }
  Floats factor = all(1.0f / std::sqrt(sum(squares) / float(size) + epsilon));
  for (int64_t i = 0; i < size; i += LANES) {
    Floats plus = bias ? load(bias + i, size - i) : zero();
    store(to + i, fma((load(row + i, size - i) - mean) * factor, load(weight + i, size - i), plus), size - i);
  }
}

template <class Value>
inline void add_row(const Value* row, Value* to, int64_t size) {
  for (int64_t i = 0; i < size; i += LANES) store(to + i, load(row + i, size - i) + load(to + i, size - i), size - i);
}

// Applies `norm(from, to)` to rows of hidden [rows, size], `stride` values apart, and writes to output, which may be the
// same. With a residual [rows, size], first residual += hidden, and then the sum is normalized.
template <class Value, class Norm>
inline void norm_rows(const Value* hidden, int64_t stride, Value* residual, Value* output, int64_t output_stride,
                      int64_t rows, int64_t size, Norm norm) {
  parallel_for(rows, rows * size > WORTH_A_THREAD, [=](int64_t row) {
    const Value* from = hidden + row * stride;
    if (residual) {
      add_row(from, residual + row * size, size);
      from = residual + row * size;
    }
    norm(from, output + row * output_stride);
  });
}

// Normalizes heads in place, if there is a weight. The sum of squares and its root have a long latency, so those of several
// heads are computed first, independently of each other.
template <class Value>
inline void norm_heads(Value* heads, const Value* weight, int64_t count, int64_t dim, float epsilon) {
  constexpr int64_t AT_ONCE = 8;
  for (int64_t first = 0, end; weight && first < count; first = end) {
    float factors[AT_ONCE];
    end = std::min(count, first + AT_ONCE);
    for (int64_t i = first; i < end; ++i) factors[i - first] = inverse_rms(heads + i * dim, dim, epsilon);
    for (int64_t i = first; i < end; ++i) scale_row(heads + i * dim, factors[i - first], weight, heads + i * dim, dim);
  }
}

// Rotates pairs of values from the two halves of a head; `table` has the cosines, then the sines.
template <class Value>
inline void rotate(Value* head, const Value* table, int64_t half) {
  for (int64_t i = 0; i < half; i += LANES) {
    Floats cosine = load(table + i, half - i), sine = load(table + half + i, half - i);
    Floats left = load(head + i, half - i), right = load(head + half + i, half - i);
    store(head + i, minus_product(right, sine, left * cosine), half - i);
    store(head + half + i, fma(right, cosine, left * sine), half - i);
  }
}

// Up to LANES values from even places, and as many from odd places.
struct Pairs {
  float left[LANES], right[LANES];

  template <class Value>
  Pairs(const Value* from, int64_t count) {
    float both[2 * LANES] = {};
    store(both, load(from, 2 * count));
    if (2 * count > LANES) store(both + LANES, load(from + LANES, 2 * count - LANES));
    for (int64_t lane = 0; lane < LANES; ++lane) left[lane] = both[2 * lane], right[lane] = both[2 * lane + 1];
  }

  template <class Value>
  void put(Value* to, int64_t count) const {
    float both[2 * LANES];
    for (int64_t lane = 0; lane < LANES; ++lane) both[2 * lane] = left[lane], both[2 * lane + 1] = right[lane];
    store(to, load(both), 2 * count);
    if (2 * count > LANES) store(to + LANES, load(both + LANES), 2 * count - LANES);
  }

  void rotate(Floats cosine, Floats sine) {
    Floats one = load(left), other = load(right);
    store(left, minus_product(other, sine, one * cosine));
    store(right, fma(other, cosine, one * sine));
  }
};

// Rotates pairs of neighboring values.
template <class Value>
inline void rotate_neighbours(Value* head, const Value* table, int64_t half) {
  for (int64_t i = 0; i < half; i += LANES) {
    int64_t count = std::min<int64_t>(LANES, half - i);
    Pairs pairs(head + 2 * i, count);
    pairs.rotate(load(table + i, count), load(table + half + i, count));
    pairs.put(head + 2 * i, count);
  }
}

// The same, but writes the two values of a pair half a head apart.
template <class Value>
inline void rotate_pairs(const Value* from, const Value* table, Value* to, int64_t half) {
  for (int64_t i = 0; i < half; i += LANES) {
    int64_t count = std::min<int64_t>(LANES, half - i);
    Pairs pairs(from + 2 * i, count);
    pairs.rotate(load(table + i, count), load(table + half + i, count));
    store(to + i, load(pairs.left), count);
    store(to + half + i, load(pairs.right), count);
  }
}

template <class Value>
void scale_by(float factor, Value* values, int64_t size) {
  for (int64_t i = 0; i < size; i += LANES) store(values + i, load(values + i, size - i) * all(factor), size - i);
}

}  // namespace

extern "C" {

// See norm_rows.
void quire_rms_norm(int type, const void* hidden, int64_t stride, void* residual, const void* weight, void* output,
                    int64_t output_stride, int64_t rows, int64_t size, float epsilon) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    norm_rows((const Value*)hidden, stride, (Value*)residual, (Value*)output, output_stride, rows, size,
              [=](const Value* from, Value* to) {
                scale_row(from, inverse_rms(from, size, epsilon), (const Value*)weight, to, size);
              });
  });
}

// Like quire_rms_norm, with a layer norm. bias may be null.
void quire_layer_norm(int type, const void* hidden, int64_t stride, void* residual, const void* weight,
                      const void* bias, void* output, int64_t output_stride, int64_t rows, int64_t size,
                      float epsilon) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    norm_rows((const Value*)hidden, stride, (Value*)residual, (Value*)output, output_stride, rows, size,
              [=](const Value* from, Value* to) {
                layer_norm(from, (const Value*)weight, (const Value*)bias, to, size, epsilon);
              });
  });
}

// to += values, both [rows, size]; if there are gates, values are multiplied by sigmoid(gates[row]).
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

// values times the sigmoid of gates, both [rows, size].
void quire_gate(int type, void* values, const void* gates, int64_t rows, int64_t size) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    parallel_for(rows, rows * size > WORTH_A_THREAD, [=](int64_t row) {
      Value* to = (Value*)values + row * size;
      const Value* gate = (const Value*)gates + row * size;
      for (int64_t i = 0; i < size; i += LANES) {
        Floats one_and_power = all(1.0f) + exponential(zero() - load(gate + i, size - i));
        store(to + i, load(to + i, size - i) / one_and_power, size - i);
      }
    });
  });
}

// Clamps values [tokens, size] to -limit … limit; NaN stays NaN.
void quire_clip(int type, void* values, int64_t tokens, int64_t size, float limit) {
  with_type(type, [&](auto value) {
    using Value = decltype(value);
    parallel_for(tokens, tokens * size > WORTH_A_THREAD, [=](int64_t row) {
      Value* to = (Value*)values + row * size;
      for (int64_t i = 0; i < size; i += LANES) {
        Floats held = load(to + i, size - i);
        store(to + i, select(at_least(held, held), least(all(limit), most(all(-limit), held)), held), size - i);
      }
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

// values [rows, size], times a factor.
void quire_scale(int type, void* values, int64_t stride, int64_t rows, int64_t size, float factor) {
  with_type(type, [=](auto value) {
    parallel_for(rows, rows * size > WORTH_A_THREAD, [=](int64_t row) {
      scale_by(factor, (decltype(value)*)values + row * stride, size);
    });
  });
}

// values [rows, size], times a factor for each row.
void quire_scale_rows(int type, void* values, int64_t stride, const float* factors, int64_t rows, int64_t size) {
  with_type(type, [=](auto value) {
    parallel_for(rows, rows * size > WORTH_A_THREAD, [=](int64_t row) {
      scale_by(factors[row], (decltype(value)*)values + row * stride, size);
    });
  });
}

// heads [tokens, heads, dim], tokens `stride` values apart, changed in place: the first `num_query` heads are queries,
// the next `num_key` keys. Norms (null: none) come before the rotation of each head's first `rotary` values:
// of neighbors if `interleaved`, else of halves. table [tokens, 2, rotary / 2].
void quire_rotate(int type, void* heads, int64_t stride, const void* table, const void* query_norm,
                  const void* key_norm, float epsilon, int64_t tokens, int64_t num_query, int64_t num_key,
                  int64_t dim, int64_t rotary, int interleaved) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    parallel_for(tokens, tokens * stride > WORTH_A_THREAD, [=](int64_t token) {
      Value* first = (Value*)heads + token * stride;
      norm_heads(first, (const Value*)query_norm, num_query, dim, epsilon);
      norm_heads(first + num_query * dim, (const Value*)key_norm, num_key, dim, epsilon);
      const Value* angles = (const Value*)table + token * rotary;
      for (Value *head = first, *end = first + (num_query + num_key) * dim; head < end; head += dim)
        interleaved ? rotate_neighbours(head, angles, rotary / 2) : rotate(head, angles, rotary / 2);
    });
  });
}

// Rotates pairs [tokens, heads, rotary] into output; strides between tokens and between heads are in values.
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

// values [rows, size], in place.
void quire_activate(int type, void* values, int64_t rows, int64_t size, int gate) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    parallel_for(rows, rows * size > WORTH_A_THREAD,
                 [=](int64_t row) { activate(gate, (Value*)values + row * size, size); });
  });
}

// values [rows, size], in place.
void quire_xielu(int type, void* values, int64_t rows, int64_t size, const Xielu* form) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    parallel_for(rows, rows * size > WORTH_A_THREAD, [=](int64_t row) {
      Value* from = (Value*)values + row * size;
      for (int64_t i = 0; i < size; i += LANES) store(from + i, xielu(*form, load(from + i, size - i)), size - i);
    });
  });
}

// Copies parts [tokens, count, bytes] to output, whose parts are contiguous. Strides between tokens and between parts are
// in bytes.
void quire_copy_parts(const void* parts, int64_t token_stride, int64_t part_stride, void* output,
                      int64_t output_stride, int64_t tokens, int64_t count, int64_t bytes) {
  parallel_for(tokens, tokens * count * bytes > BYTES_WORTH_A_THREAD, [=](int64_t token) {
    const char* from = (const char*)parts + token * token_stride;
    char* to = (char*)output + token * output_stride;
    for (int64_t i = 0; i < count; ++i) std::copy_n(from + i * part_stride, bytes, to + i * bytes);
  });
}

// output [rows, bytes] becomes zeros.
void quire_clear(void* output, int64_t rows, int64_t bytes) {
  parallel_for(rows, rows * bytes > BYTES_WORTH_A_THREAD,
               [=](int64_t row) { std::fill_n((char*)output + row * bytes, bytes, 0); });
}
}

RECORDABLE(rms_norm)
RECORDABLE(layer_norm)
RECORDABLE(add)
RECORDABLE(clip)
RECORDABLE(gate)
RECORDABLE(rotate)
RECORDABLE(rotate_pairs)
RECORDABLE(activate_and_multiply)
RECORDABLE(activate)
RECORDABLE(xielu)
RECORDABLE(scale)
RECORDABLE(scale_rows)
RECORDABLE(copy_parts)
RECORDABLE(clear)
