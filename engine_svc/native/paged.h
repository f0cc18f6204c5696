// The paged cache of keys and values, in the layout that attention multiplies.
//
// A layer's cache consists of blocks of keys and blocks of values, each [kv_heads, part], so that a few tokens' data is in
// few pages. With the GROUP of their type (groups.h), a part of keys is [dim / GROUP, block_size, GROUP]: a packed matrix
// whose outputs are keys, so that scores are its product with queries. A part of values is [block_size / GROUP, dim,
// GROUP]: a packed matrix whose outputs are the head's values, so that their weighted sum is its product with weights. Keys
// that are also the values are cached only as values.
#pragma once

#include <algorithm>

#include "groups.h"

namespace quire {

constexpr int UNIT = 16;  // positions: blocks hold a multiple of this, so no unit spans two blocks
constexpr int64_t MOST_DIM = 576;

// A head's cache, followed by those of the next heads, and the blocks of one sequence in it. `Cached` is the type of the
// cache's elements for values of `Stored`: the same type, or EightBits.
template <class Stored, class Cached>
struct Paged {
  static constexpr int GROUP = Groups<Stored>::GROUP;
  const Cached *keys, *values;  // keys: null if the values are also the keys
  const int32_t* blocks;
  int64_t block_stride, head_stride;  // values between blocks, and between a block's heads
  int64_t block_size, dim;

  Paged head(int64_t index) const {
    Paged other = *this;
    other.keys = keys ? keys + index * head_stride : nullptr, other.values = values + index * head_stride;
    return other;
  }
  int64_t start(int64_t position) const { return blocks[uint32_t(position) / uint32_t(block_size)] * block_stride; }
  int64_t within(int64_t position) const { return uint32_t(position) % uint32_t(block_size); }
  // The place of the first group of the unit that begins at `position`. The next groups along dim are `step` apart.
  int64_t key_place(int64_t position) const { return start(position) + within(position) * GROUP; }
  int64_t step() const { return block_size * GROUP; }
  int64_t value_place(int64_t position) const { return start(position) + within(position) * dim; }
  const Cached* keys_at(int64_t position) const { return keys + key_place(position); }
  const Cached* values_at(int64_t position) const { return values + value_place(position); }
};

// Copies a unit's values with zeros outside of its positions [begin, end), where the cache may have any data.
template <class Stored>
void clean_values(const Stored* values, int64_t dim, int64_t begin, int64_t end, Stored* to) {
  constexpr int GROUP = Groups<Stored>::GROUP;
  for (int64_t at = 0; at < UNIT; at += GROUP, values += GROUP * dim, to += GROUP * dim) {
    if (begin <= at && at + GROUP <= end) {
      std::copy_n(values, GROUP * dim, to);
      continue;
    }
    std::fill_n(to, GROUP * dim, Stored{});
    for (int64_t g = std::max<int64_t>(0, begin - at); g < std::min<int64_t>(GROUP, end - at); ++g)
      for (int64_t i = g; i < GROUP * dim; i += GROUP) to[i] = values[i];
  }
}

// Transposes the rows of a unit, each `words` words of 32 bits and `stride` apart; columns of neighboring words are `step`
// apart.
inline void turn_unit(const float* rows, int64_t stride, int64_t words, float* to, int64_t step) {
  for (int64_t at = 0; at < UNIT; at += LANES)
    for (int64_t i = 0; i < words; i += LANES) {
      Floats square[LANES];
      for (int r = 0; r < LANES; ++r) square[r] = load(rows + (at + r) * stride + i, words - i);
      transpose(square);
      for (int r = 0; r < LANES && i + r < words; ++r) store(to + (i + r) * step + at, square[r]);
    }
}

// Rearranges a unit of values as keys: [dim * sizeof(Input) / 4, UNIT] of 32 bits each. `rows` [UNIT, dim] is temporary
// memory.
template <class Type>
void turn_to_keys(const typename Type::Stored* values, int64_t dim, typename Type::Input* rows,
                  typename Type::Input* keys) {
  for (int64_t at = 0; at < UNIT; at += Type::GROUP)
    for (int64_t i = 0; i < dim; i += LANES) {
      const auto* from = values + at * dim + i * Type::GROUP;
      if constexpr (Type::GROUP == 2) {
        store(rows + at * dim + i, load_even(from));
        store(rows + (at + 1) * dim + i, load_odd(from));
      } else {
        store(rows + at * dim + i, load(from));
      }
    }
  int64_t words = dim * int64_t(sizeof(*rows)) / 4;
  turn_unit((const float*)rows, words, words, (float*)keys, UNIT);
}

}  // namespace quire
