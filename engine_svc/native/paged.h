// The paged cache as attention reads it, and what its kernels share.
//
// The cache of a layer is two arrays, keys and values, of [kv_heads, blocks, block_size, dim].
#pragma once

#include "common.h"

namespace quire {

constexpr int MOST_DIM = 256;

// Where the keys and values of one sequence's head lie.
struct Cache {
  const bf16 *keys, *values;  // of one head
  const int32_t* blocks;      // of one sequence
  int64_t block_size, dim;

  int64_t offset(int64_t position) const {
    return (blocks[position / block_size] * block_size + position % block_size) * dim;
  }
};

// softcap * tanh(scores / softcap)
inline __m512 cap_scores(__m512 scores, float softcap) {
  __m512 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f), cap = _mm512_set1_ps(softcap);
  __m512 power = exponential(_mm512_div_ps(_mm512_mul_ps(two, scores), cap));
  __m512 tangent = _mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(power, one)));
  return _mm512_mul_ps(cap, tangent);
}

}  // namespace quire
