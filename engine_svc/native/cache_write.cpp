// New keys and values to their slots of the paged cache, whose layout paged.h has.
#include <vector>

#include "paged.h"
#include "parallel.h"
#include "types.h"

using namespace quire;

namespace {

constexpr int64_t WORTH_A_THREAD = 1 << 15;  // values: below, waking a thread costs more than it saves

// Tokens whose slots follow each other within a unit.
struct Run {
  int64_t first, last;
};

std::vector<Run> find_runs(const int64_t* slots, int64_t tokens) {
  std::vector<Run> runs;
  for (int64_t token = 0; token < tokens; ++token) {
    bool goes_on = token && slots[token] == slots[token - 1] + 1 && slots[token] % UNIT;
    if (goes_on) ++runs.back().last;
    else runs.push_back({token, token + 1});
  }
  return runs;
}

// GROUP values of each token side by side, tokens behind each other.
template <class Stored>
void write_keys(const Stored* key, int64_t stride, int64_t tokens, int64_t dim, Stored* to, int64_t step) {
  constexpr int GROUP = Groups<Stored>::GROUP;
  for (int64_t i = 0; i < dim; i += GROUP, to += step)
    for (int64_t t = 0; t < tokens; ++t) std::copy_n(key + t * stride + i, GROUP, to + t * GROUP);
}

// A token's values, to every GROUP-th place from the one that it has in its group on.
template <class Stored>
void write_values(const Stored* value, int64_t stride, int64_t tokens, int64_t within, int64_t dim, Stored* block) {
  constexpr int GROUP = Groups<Stored>::GROUP;
  for (int64_t t = 0; t < tokens; ++t, value += stride, ++within) {
    Stored* to = block + within / GROUP * GROUP * dim + within % GROUP;
    for (int64_t i = 0; i < dim; ++i) to[i * GROUP] = value[i];
  }
}

}  // namespace

extern "C" {

// key, value [tokens, kv_heads, dim], tokens `..._stride` values apart; `plane` values between the cache's heads. keys is
// null where values are keys too.
void quire_write_cache(int type, const void* key, const void* value, int64_t key_stride, int64_t value_stride,
                       const int64_t* slots, void* keys, void* values, int64_t plane, int64_t tokens, int64_t kv_heads,
                       int64_t dim, int64_t block_size) {
  std::vector<Run> runs = find_runs(slots, tokens);
  with_type(type, [&](auto stored) {
    using Stored = decltype(stored);
    constexpr int GROUP = Groups<Stored>::GROUP;
    parallel_for(int64_t(runs.size()), tokens * kv_heads * dim > WORTH_A_THREAD, [&](int64_t i) {
      int64_t token = runs[i].first, count = runs[i].last - token, within = slots[token] % block_size;
      for (int64_t head = 0; head < kv_heads; ++head) {
        int64_t block = head * plane + (slots[token] - within) * dim;
        if (keys)
          write_keys((const Stored*)key + token * key_stride + head * dim, key_stride, count, dim,
                     (Stored*)keys + block + within * GROUP, block_size * GROUP);
        write_values((const Stored*)value + token * value_stride + head * dim, value_stride, count, within, dim,
                     (Stored*)values + block);
      }
    });
  });
}
}
