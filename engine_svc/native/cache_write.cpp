// New keys and values to their slots of the paged cache.
#ifdef __AVX512BF16__
#include <algorithm>

#include "common.h"

using namespace quire_dot;

extern "C" {

// key, value [tokens, kv_heads, dim], tokens `..._stride` values apart, to their slots; `plane` values between heads.
void quire_write_cache(const bf16* key, const bf16* value, int64_t key_stride, int64_t value_stride,
                       const int64_t* slots, bf16* keys, bf16* values, int64_t plane, int64_t tokens,
                       int64_t kv_heads, int64_t dim, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (tokens * kv_heads * dim > 1 << 15)
  for (int64_t token = 0; token < tokens; ++token)
    for (int64_t head = 0; head < kv_heads; ++head) {
      int64_t to = head * plane + slots[token] * dim;
      std::copy_n(key + token * key_stride + head * dim, dim, keys + to);
      std::copy_n(value + token * value_stride + head * dim, dim, values + to);
    }
}
}
#endif
