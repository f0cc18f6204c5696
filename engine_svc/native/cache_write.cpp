// Writes new keys and values to their slots of the paged cache; for its layout, see paged.h.
#include <cstring>
#include <type_traits>
#include <vector>

#include "eight_bits.h"
#include "paged.h"
#include "parallel.h"
#include "recordable.h"
#include "types.h"

using namespace quire;

namespace {

constexpr int64_t WORTH_A_THREAD = 1 << 12;  // values: below this, waking a thread costs more than it saves

// Tokens with consecutive slots within a unit. Negative slots are padding.
struct Run {
  int64_t first, last;
};

std::vector<Run> find_runs(const int64_t* slots, int64_t tokens) {
  std::vector<Run> runs;
  for (int64_t token = 0; token < tokens; ++token) {
    if (slots[token] < 0) continue;
    bool goes_on = token && slots[token] == slots[token - 1] + 1 && slots[token] % UNIT;
    if (goes_on) ++runs.back().last;
    else runs.push_back({token, token + 1});
  }
  return runs;
}

// Writes keys: GROUP values of each token side by side, one token after the other.
template <int GROUP, class Cached>
void write_keys(const Cached* key, int64_t stride, int64_t tokens, int64_t dim, Cached* to, int64_t step) {
  constexpr int64_t BYTES = GROUP * sizeof(Cached);
  if (BYTES == sizeof(float) && tokens == UNIT && stride % GROUP == 0)
    return turn_unit((const float*)key, stride / GROUP, dim / GROUP, (float*)to, step / GROUP);
  for (int64_t i = 0; i < dim; i += GROUP, to += step)
    for (int64_t t = 0; t < tokens; ++t) std::memcpy(to + t * GROUP, key + t * stride + i, BYTES);
}

// Writes a token's values to every GROUP-th place, from its place within the group on; a whole group at once.
template <int GROUP, class Cached>
void write_values(const Cached* value, int64_t stride, int64_t tokens, int64_t within, int64_t dim, Cached* block) {
  for (int64_t t = 0, count; t < tokens; t += count, value += count * stride, within += count) {
    Cached* __restrict to = block + within / GROUP * GROUP * dim + within % GROUP;
    count = within % GROUP == 0 && t + GROUP <= tokens ? GROUP : 1;
    if (count == 1) {
      for (int64_t i = 0; i < dim; ++i) to[i * GROUP] = value[i];
    } else {
      for (int64_t i = 0; i < dim; ++i)
        for (int64_t g = 0; g < GROUP; ++g) to[i * GROUP + g] = value[g * stride + i];
    }
  }
}

// Prefetches the lines that a head's rows of a run go to, so that the writes do not wait for each of them. Always inlined,
// because gcc drops calls of functions that only prefetch.
template <int GROUP, class Cached>
[[gnu::always_inline]] inline void fetch(const Cached* keys, int64_t step, const Cached* values, int64_t within, int64_t tokens, int64_t dim) {
  constexpr int64_t LINE = 64 / sizeof(Cached);
  for (int64_t i = 0; keys && i < dim; i += GROUP, keys += step) prefetch(keys);
  const Cached* end = values + (within + tokens + GROUP - 1) / GROUP * GROUP * dim;
  for (values += within / GROUP * GROUP * dim; values < end; values += LINE) prefetch(values);
}

// The rows of a run in the cache's type: unchanged, or converted into the memory of `run`.
template <class Cached, class Value>
const Cached* as_cached(const Value* rows, int64_t& stride, int64_t tokens, int64_t dim, Cached* run) {
  if constexpr (std::is_same_v<Cached, Value>) {
    return rows;
  } else {
    for (int64_t t = 0; t < tokens; ++t) narrow_row(rows + t * stride, dim, run + t * dim);
    stride = dim;
    return run;
  }
}

}  // namespace

extern "C" {

// key, value [tokens, kv_heads, dim], tokens `..._stride` values apart. The strides between the cache's blocks and between
// a block's heads are in values too. keys is null if the values are also the keys. Tokens with negative slots are not
// written. `cached` is numbered as in with_cached.
void quire_write_cache(int type, int cached, const void* key, const void* value, int64_t key_stride,
                       int64_t value_stride, const int64_t* slots, void* keys, void* values, int64_t block_stride,
                       int64_t head_stride, int64_t tokens, int64_t kv_heads, int64_t dim, int64_t block_size) {
  std::vector<Run> runs = find_runs(slots, tokens);
  auto write = [&](auto stored, auto in_cache) {
    using Stored = decltype(stored);
    using Cached = decltype(in_cache);
    constexpr int GROUP = Groups<Stored>::GROUP;
    parallel_for(int64_t(runs.size()), tokens * kv_heads * dim > WORTH_A_THREAD, [&](int64_t i) {
      Cached memory[std::is_same_v<Cached, Stored> ? 1 : UNIT * MOST_DIM];
      int64_t token = runs[i].first, count = runs[i].last - token, within = slots[token] % block_size;
      int64_t first = slots[token] / block_size * block_stride;
      for (int64_t head = 0; head < kv_heads; ++head) {
        int64_t block = first + head * head_stride;
        fetch<GROUP>(keys ? (const Cached*)keys + block + within * GROUP : nullptr, block_size * GROUP,
                     (const Cached*)values + block, within, count, dim);
      }
      for (int64_t head = 0; head < kv_heads; ++head) {
        int64_t block = first + head * head_stride, stride = key_stride;
        if (keys) {
          auto rows = as_cached((const Stored*)key + token * stride + head * dim, stride, count, dim, memory);
          write_keys<GROUP>(rows, stride, count, dim, (Cached*)keys + block + within * GROUP, block_size * GROUP);
        }
        stride = value_stride;
        auto rows = as_cached((const Stored*)value + token * stride + head * dim, stride, count, dim, memory);
        write_values<GROUP>(rows, stride, count, within, dim, (Cached*)values + block);
      }
    });
  };
  with_type(type, [&](auto stored) { with_cached(cached, stored, [&](auto in_cache) { write(stored, in_cache); }); });
}
}

RECORDABLE(write_cache)
