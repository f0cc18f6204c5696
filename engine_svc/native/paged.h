// The paged cache as attention reads it, and what its kernels share.
//
// The cache of a layer is two arrays, keys and values, of [kv_heads, blocks, block_size, dim].
#pragma once

#include <algorithm>

#include "common.h"

namespace quire_dot {

constexpr int MOST_DIM = 256;

// Where the keys and values of one sequence's head lie.
struct Cache {
  const bf16 *keys, *values;  // of one head
  const int32_t* blocks;      // of one sequence
  int64_t block_size, dim;

  // Offsets of `count` positions from `position` on, with one division for all of them.
  void locate(int64_t position, int count, int64_t* offsets) const {
    int64_t block = position / block_size, within = position % block_size;
    for (int t = 0; t < count; ++block, within = 0) {
      int64_t first = (blocks[block] * block_size + within) * dim;
      int run = int(std::min<int64_t>(count - t, block_size - within));
      for (int i = 0; i < run; ++i) offsets[t + i] = first + i * dim;
      t += run;
    }
  }
};

// softcap * tanh(scores / softcap)
inline __m512 cap_scores(__m512 scores, float softcap) {
  __m512 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f), cap = _mm512_set1_ps(softcap);
  __m512 power = exponential(_mm512_div_ps(_mm512_mul_ps(two, scores), cap));
  __m512 tangent = _mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(power, one)));
  return _mm512_mul_ps(cap, tangent);
}

}  // namespace quire_dot
