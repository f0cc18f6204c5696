// What stands between the matrix products of a decoder layer: norms with their residual, rotary positions, gated activations.
// bfloat16 in memory, float32 in between.
#include <cmath>

#include "common.h"

using namespace quire;

namespace {

constexpr int64_t WORTH_A_THREAD = 1 << 15;  // values: below, waking a thread costs more than it saves

// The factor that makes the root mean square of a row 1.
inline float inverse_rms(const bf16* row, int64_t size, float epsilon) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += LANES) {
    __m512 value = load(row + i, first(size - i));
    sum = _mm512_fmadd_ps(value, value, sum);
  }
  return 1.0f / std::sqrt(_mm512_reduce_add_ps(sum) / float(size) + epsilon);
}

inline void scale_row(const bf16* row, float factor, const bf16* weight, bf16* to, int64_t size) {
  for (int64_t i = 0; i < size; i += LANES) {
    __mmask16 mask = first(size - i);
    __m512 value = _mm512_mul_ps(load(row + i, mask), _mm512_set1_ps(factor));
    store(to + i, _mm512_mul_ps(value, load(weight + i, mask)), mask);
  }
}

// Rotates the halves of one head against each other; `table` holds the cosines, then the sines.
inline void rotate(bf16* head, const bf16* table, int64_t half) {
  for (int64_t i = 0; i < half; i += LANES) {
    __mmask16 mask = first(half - i);
    __m512 cosine = load(table + i, mask), sine = load(table + half + i, mask);
    __m512 left = load(head + i, mask), right = load(head + half + i, mask);
    store(head + i, _mm512_fmsub_ps(left, cosine, _mm512_mul_ps(right, sine)), mask);
    store(head + half + i, _mm512_fmadd_ps(right, cosine, _mm512_mul_ps(left, sine)), mask);
  }
}

}  // namespace

extern "C" {

// hidden [rows, size]. With a residual, residual += hidden first, and the sum is what is normalised.
void quire_rms_norm(const bf16* hidden, bf16* residual, const bf16* weight, bf16* output, int64_t rows, int64_t size,
                    float epsilon, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * size > WORTH_A_THREAD)
  for (int64_t row = 0; row < rows; ++row) {
    const bf16* from = hidden + row * size;
    if (residual) {
      bf16* sum = residual + row * size;
      for (int64_t i = 0; i < size; i += LANES) {
        __mmask16 mask = first(size - i);
        store(sum + i, _mm512_add_ps(load(from + i, mask), load(sum + i, mask)), mask);
      }
      from = sum;
    }
    scale_row(from, inverse_rms(from, size, epsilon), weight, output + row * size, size);
  }
}

// heads [tokens, heads, dim], tokens `stride` values apart, changed in place: the first `num_query` heads are queries,
// the next `num_key` keys. Norms (null: none) come before the rotation of each head's first `rotary` values.
// table [tokens, 2, rotary / 2].
void quire_rotate(bf16* heads, int64_t stride, const bf16* table, const bf16* query_norm, const bf16* key_norm,
                  float epsilon, int64_t tokens, int64_t num_query, int64_t num_key, int64_t dim,
                  int64_t rotary, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (tokens * stride > WORTH_A_THREAD)
  for (int64_t token = 0; token < tokens; ++token)
    for (int64_t index = 0; index < num_query + num_key; ++index) {
      bf16* head = heads + token * stride + index * dim;
      const bf16* norm = index < num_query ? query_norm : key_norm;
      if (norm) scale_row(head, inverse_rms(head, dim, epsilon), norm, head, dim);
      rotate(head, table + token * rotary, rotary / 2);
    }
}

void quire_activate_and_multiply(const bf16* gate_up, bf16* output, int64_t rows, int64_t size, int gelu,
                                 int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * size > WORTH_A_THREAD)
  for (int64_t row = 0; row < rows; ++row) {
    const bf16* from = gate_up + row * 2 * size;
    bf16* to = output + row * size;
    gelu ? activate_and_multiply<true>(from, to, size) : activate_and_multiply<false>(from, to, size);
  }
}
}
