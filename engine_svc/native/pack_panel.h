// Packs rows of a weight for products; see matrix.h.
#pragma once

#include <algorithm>
#include <cstring>

#include "inputs.h"

namespace quire {

constexpr int64_t UNITS_PER_BLOCK = 64;  // consecutive groups read from a row, while what is written stays in the cache

// Packs up to PANEL rows [rows, size] into one panel, see group_at; missing outputs and values are zeros.
template <class Type, class Value>
void pack_panel(const Value* from, int64_t rows, int64_t size, Value* panel) {
  struct Group {
    Value values[Type::GROUP];
  };
  auto to = (Group*)panel;
  int64_t steps = steps_of<Type>(size), whole = size / Type::GROUP;
  for (int64_t begin = 0; begin < steps; begin += UNITS_PER_BLOCK) {
    int64_t end = std::min(begin + UNITS_PER_BLOCK, steps), there = std::min(end, whole);
    for (int64_t n = 0; n < PANEL; ++n) {
      int64_t k = begin;
      if (n < rows)
        for (auto row = (const char*)(from + n * size); k < there; ++k)
          std::memcpy(&to[group_at<Type>(k, n)], row + k * sizeof(Group), sizeof(Group));
      for (; k < end; ++k) {
        Group& last = to[group_at<Type>(k, n)] = Group{};
        for (int64_t i = k * Type::GROUP; n < rows && i < size; ++i)
          if (i < (k + 1) * Type::GROUP) last.values[i % Type::GROUP] = from[n * size + i];
      }
    }
  }
}

}  // namespace quire
