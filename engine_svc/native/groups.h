// How inputs times weights are added up, for each type of weights: the one thing in which the levels' products differ.
//
// Weights of a few consecutive k stand together, as many as one instruction of the level eats: a group. What a type has:
//
//   Stored, Input        values of a packed weight and of an input
//   Weight, Sum          registers: LANES outputs' weights, and their sums
//   Total                a sum as it is in memory: float or int32_t
//   GROUP                values of a group
//   PARTS                additions that a group takes, of GROUP / PARTS values each
//   ALIGNMENT            groups that a packed weight's size is filled up to, with zeros
//   OFFSET               what inputs are stored higher by (int8)
//   TILES                whether matrix registers do it (matrix_amx.h), and not what follows
//   weight(from, part)   of LANES outputs' groups
//   pair(first, second)  likewise, of groups of two bfloat16: of what is not in memory
//   Table, table, look_up  16 numbers, and a weight for each int: by its lowest 4 bits or, of two bfloat16, by those of its
//                        halves, rounded (coded_spans.h)
//   part_of(groups, part)  the same as weight, of what is not in memory (compressed.h)
//   input(from)          of one row, for one addition, in every lane
//   add(sum, input, weight)
//   Wide                 with many rows, a block of weights is turned into those of this type first (or it is the type
//                        itself): an addition's values each, so that GROUP is GROUP / PARTS and PARTS is 1
//   widen(to, weight)    stores what Wide::weight loads
//
// Every output is summed over k in order, in one sum, which is why it does not depend on what is computed beside it.
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

// Widened to float32 in registers.
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

// Two bfloat16 make a lane: a shift or a mask widens one of them.
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

// What weights of a floating-point type are multiplied as; those of int8 are Int8Groups (groups_int8.h).
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
