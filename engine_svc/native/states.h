// What the operations of recurrent layers share: the caller's sequences, where their states are, and functions.
//
// A sequence's tokens are processed one after the other, with the same operations for a prompt as for a single token. A
// piece of work is a sequence's head or some of its channels, whose state stays in a core's cache for all tokens.
#pragma once

#include <cstdint>

#include "types.h"

namespace quire {

constexpr int64_t WORTH_A_THREAD = 1 << 14;  // values of states: below this, waking a thread costs more than it saves
constexpr int64_t CHANNELS = 256;            // per piece

// The sequences of a batch's rows, and their states' slots, as passed by the caller.
struct Sequences {
  const int32_t* starts;  // [count + 1]
  const int64_t* slots;
  const bool* is_fresh;  // whether a sequence's slot holds old data of another sequence
  const int64_t* targets;  // [tokens], the slot for the state after each token, or -1; null: the sequence's, after its last
  int64_t count;
};

// Rows that are `stride` values apart.
struct Rows {
  const void* values;
  int64_t stride;

  template <class Value>
  const Value* row(int64_t index) const {
    return (const Value*)values + index * stride;
  }
};

inline Floats sigmoid(Floats x) { return all(1.0f) / (all(1.0f) + exponential(zero() - x)); }

// log(1 + e^x) to 2 units in the last place, by the series of log(1 + u) = 2 * artanh(u / (2 + u)) with u = e^-|x|.
inline Floats softplus(Floats x) {
  Floats u = exponential(zero() - magnitude(x)), s = u / (all(2.0f) + u), z = s * s;
  Floats y = all(1.0f / 17);
  for (float odd : {15.0f, 13.0f, 11.0f, 9.0f, 7.0f, 5.0f, 3.0f, 1.0f}) y = fma(y, z, all(1.0f / odd));
  return fma(all(2.0f) * s, y, most(zero(), x));
}

// Values rounded to a type.
template <class Stored>
inline Floats rounded(Floats values) {
  if (sizeof(Stored) == sizeof(float)) return values;
  Stored copy[LANES];
  store(copy, values);
  return load(copy);
}

template <class Call>
void with_types(int type, int stored, const Call& call) {
  with_type(type, [&](auto value) { with_type(stored, [&](auto state) { call(value, state); }); });
}

// Where the states of a sequence's head, or of some of its channels, are: at `own` before its first token.
template <class Stored>
struct States {
  Stored* own;
  Stored* first;           // of slot 0
  int64_t stride;          // from slot to slot
  const int64_t* targets;  // of the sequence's tokens, or null
  bool is_fresh;

  States(const Sequences& sequences, int64_t index, void* states, int64_t stride, int64_t offset)
      : own((Stored*)states + sequences.slots[index] * stride + offset), first((Stored*)states + offset), stride(stride),
        targets(sequences.targets ? sequences.targets + sequences.starts[index] : nullptr),
        is_fresh(sequences.is_fresh[index]) {}

  // Where the state after a token goes; null if nowhere.
  Stored* after(int64_t token, int64_t tokens) const {
    if (!targets) return token == tokens - 1 ? own : nullptr;
    return targets[token] < 0 ? nullptr : first + targets[token] * stride;
  }
};

}  // namespace quire
