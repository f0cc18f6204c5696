// How products of inputs and weights are accumulated for each type of weights: all that differs between the levels.
//
// Weights of a few consecutive k are stored together, as many as one instruction of the level takes: a group. A type has:
//
//   Stored, Input        values of a packed weight and of an input
//   Weight, Sum          registers: LANES outputs' weights, and their sums
//   Total                a sum as it is in memory: float or int32_t
//   GROUP                values of a group
//   PARTS                number of additions for a group, of GROUP / PARTS values each
//   ALIGNMENT            packed weights are filled up with zeros to a multiple of so many groups
//   OFFSET               added to stored inputs (int8)
//   TILES                whether matrix registers are used (matrix_amx.h) instead of what follows
//   weight(from, part)   loads a part of LANES outputs' groups
//   pair(first, second)  likewise for groups of two bfloat16, from registers
//   Table, table, look_up  16 numbers, and a weight for each int: by its lowest 4 bits or, for two bfloat16, by those of
//                        each half, rounded (coded_spans.h)
//   part_of(groups, part)  like weight, from registers (compressed.h)
//   input(from)          the input of one row for one addition, in every lane
//   add(sum, input, weight)
//   Wide                 the type that blocks of weights are converted to first if there are many rows (may be the type
//                        itself). Its groups are the values of one addition: its GROUP is GROUP / PARTS, its PARTS 1
//   widen(to, weight)    stores what Wide::weight loads
//
// Every output is summed over k in order, in a single sum, so it does not depend on what is computed beside it.
#pragma once

#include <cstring>

#include "vector.h"

namespace quire {

// The 4 bytes of a group, in every lane.
inline Ints repeat_group(const void* from) {
  int32_t group;
  std::memcpy(&group, from, sizeof(group));
  return all_ints(group);
}

// Weights that are converted to float32 in registers.
template <class Value>
struct Widened {
  using Stored = Value;
  using Input = float;
  using Weight = Floats;
  using Sum = Floats;
  using Total = float;
  using Wide = Widened<float>;
  static constexpr int GROUP = 1, PARTS = 1, ALIGNMENT = 1, OFFSET = 0;
  static constexpr bool TILES = false;
  static Weight weight(const Stored* from, int) { return load(from); }
  static Floats input(const Input* from) { return all(*from); }
  static Sum add(Sum sum, Floats input, Weight weight) { return fma(input, weight, sum); }
  static void widen(float* to, Weight weight) { store(to, weight); }
  using Table = quire::Table;
  static Table table(const float* numbers) { return quire::table(numbers); }
  static Weight look_up(Table table, Ints places) { return quire::look_up(table, places); }
};

// A lane has two bfloat16; a shift or a mask converts one of them.
template <>
struct Widened<bf16> : Widened<float> {
  using Stored = bf16;
  static constexpr int GROUP = 2, PARTS = 2;
  static Weight weight(const Stored* from, int part) { return part_of(load_ints((const int32_t*)from), part); }
  static Weight part_of(Ints groups, int part) { return part ? odd_halves(groups) : even_halves(groups); }
};

}  // namespace quire

#if defined(__x86_64__)
#include "groups_x86.h"
#elif defined(__ARM_NEON)
#include "groups_arm.h"
#else
#error "There are no products of bfloat16 for this instruction set."
#endif

namespace quire {

// The groups for weights of a floating-point type; those for int8 are Int8Groups (groups_int8.h).
template <class Value>
struct GroupsOf {
  using Type = Widened<Value>;
};

template <>
struct GroupsOf<bf16> {
  using Type = Bf16Groups;
};

template <class Value>
using Groups = typename GroupsOf<Value>::Type;

}  // namespace quire
