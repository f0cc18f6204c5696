// Finds sequences of a batch whose contexts begin with the same blocks: prompts with a common prefix if prefix caching is
// on, and the choices of one request.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace quire {

constexpr int64_t WORTH_SHARING = 256;  // positions saved: below this, handling the intermediate sums costs more

// A prefix that is read once for all of its sequences.
struct Prefix {
  std::vector<int64_t> sequences;
  int64_t positions;  // a multiple of a chunk
  int64_t rows;       // of all their new tokens, per key-value head

  int64_t saved() const { return (int64_t(sequences.size()) - 1) * positions; }
};

// A batch's sequences: for each, its blocks, its number of positions before the new tokens, and the number of rows of the
// new tokens per key-value head.
struct Contexts {
  const int32_t* block_table;
  int64_t table_stride, block_size;
  std::vector<int64_t> positions, rows;

  const int32_t* blocks(int64_t sequence) const { return block_table + sequence * table_stride; }
  // The end of the blocks that are full before the new tokens.
  const int32_t* end_of_blocks(int64_t sequence) const { return blocks(sequence) + positions[sequence] / block_size; }
};

// The prefixes worth sharing, with at most `most_rows` rows each. Which ones are found does not affect any row's result.
inline std::vector<Prefix> find_prefixes(const Contexts& contexts, int64_t chunk, int64_t most_rows) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < int64_t(contexts.rows.size()); ++i)
    if (contexts.positions[i] >= WORTH_SHARING && 2 * contexts.rows[i] <= most_rows) order.push_back(i);
  // Sorts sequences so that those with the most in common are neighbors.
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::lexicographical_compare(contexts.blocks(a), contexts.end_of_blocks(a), contexts.blocks(b),
                                        contexts.end_of_blocks(b));
  });
  std::vector<Prefix> prefixes;
  auto drop_unless_worth = [&] {
    if (!prefixes.empty() && prefixes.back().saved() < WORTH_SHARING) prefixes.pop_back();
  };
  for (int64_t sequence : order) {
    if (!prefixes.empty()) {
      Prefix& last = prefixes.back();
      auto* blocks = contexts.blocks(last.sequences[0]);
      int64_t most = std::min(last.positions, contexts.positions[sequence]) / contexts.block_size;
      int64_t equal = std::mismatch(blocks, blocks + most, contexts.blocks(sequence)).first - blocks;
      int64_t positions = equal * contexts.block_size / chunk * chunk;
      bool saves = positions > 0 && int64_t(last.sequences.size()) * positions >= last.saved();
      if (saves && last.rows + contexts.rows[sequence] <= most_rows) {
        last.sequences.push_back(sequence), last.positions = positions, last.rows += contexts.rows[sequence];
        continue;
      }
      drop_unless_worth();
    }
    prefixes.push_back({{sequence}, contexts.positions[sequence] / chunk * chunk, contexts.rows[sequence]});
  }
  drop_unless_worth();
  return prefixes;
}

}  // namespace quire
