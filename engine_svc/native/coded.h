// Weights of 4 or 8 bits that codes stand for: grid[code] * scale + offset.
//
// A panel is chunks of CHUNK inputs, and a chunk is the scales [spans, PANEL], the offsets likewise, if there are any, and
// the codes: [CHUNK / 8, PANEL] of 32 bits that have those of eight inputs, of even ones in the lower half, of odd ones in
// the upper half, the first in each one's lowest bits, or [CHUNK, PANEL] of 8 bits; matrix registers have orders of their own (coded_amx.h, coded_pairs.h). Inputs of a span share a scale.
//
// Without matrix registers, codes of 4 bits are multiplied as the numbers that they stand for, and what is scaled are the
// sums of spans; so are those of 8 bits where single values are multiplied, and not pairs of bfloat16: coded_spans.h. All
// other products are those with what the codes stand for, in the same order, and equal to them bit for bit: coded_wide.h.
#pragma once

#include <cstring>

#include "matrix.h"
#include "types.h"

namespace quire {

constexpr int64_t CHUNK = 128;  // inputs
constexpr int64_t MOST_SPANS = 8;

// E4M3_TABLES is e4m3 by spans of 64 inputs at least, without offsets, all of whose numbers but zeros are normal ones of
// bfloat16 when they are scaled: see coded_amx.h.
enum Codes { NIBBLES, INT8_CODES, E4M3_CODES, E5M2_CODES, E4M3_TABLES };

// As the caller describes a weight.
struct CodedForm {
  int codes;
  int span;                   // 16, 32, 64 or 128 inputs
  int scale_type;             // as types.h numbers them
  int offset_type;            // the same, or -1: there are none
  const float* grid;          // [16], of NIBBLES
  const int64_t* input_order;  // [matrices, size]: codes' column i is for input input_order[i]; or null

  int64_t scales() const { return CHUNK / span * PANEL; }
  static int64_t scale_width(int type) { return type < 0 ? 0 : type == 0 ? 4 : 2; }
  int64_t scale_bytes(int type) const { return scales() * scale_width(type); }
  int64_t code_bytes() const { return CHUNK * PANEL / (codes == NIBBLES ? 2 : 1); }
  int64_t chunk_bytes() const { return scale_bytes(scale_type) + scale_bytes(offset_type) + code_bytes(); }
};

// Weights that are widened to those of W, see groups.h.
template <class W>
struct Coded {
  using Stored = char;
  using Input = typename W::Input;
  using Total = float;
  using Wide = W;
  static constexpr int GROUP = 1, ALIGNMENT = CHUNK, OFFSET = 0;
  static constexpr bool TILES = W::TILES;
};

template <class Value>
using CodedGroups = Coded<typename Groups<Value>::Wide>;

// What comes as far behind `bytes` that are read now: from memory in time, and out of the second-level cache before it is
// read, for a tile's product fills what a processor looks ahead.
constexpr int64_t NEAR_BYTES = 1 << 10;

[[gnu::always_inline]] inline void prefetch_coded(const char* from, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += LINE)
    prefetch_far(from + AHEAD_BYTES + line), prefetch(from + NEAR_BYTES + line);
}

// A chunk's scales and offsets in float32.
struct Scales {
  alignas(LINE) float scale[MOST_SPANS][PANEL], offset[MOST_SPANS][PANEL];

  // Numbers may be loaded `raised` higher than they are, which offsets take back, where the form has none.
  explicit Scales(const CodedForm& form, float raised = 0)
      : scale_type(form.scale_type), offset_type(form.offset_type), count(form.scales()),
        scale_bytes(form.scale_bytes(scale_type)), bytes(scale_bytes + form.scale_bytes(offset_type)), raised(raised) {
    if (offset_type < 0) std::memset(offset, 0, count * sizeof(float));
  }
  // Returns where the codes begin.
  const char* read(const char* chunk) {
    prefetch_coded(chunk, bytes);
    widen(chunk, scale_type, scale[0]);
    if (offset_type >= 0) widen(chunk + scale_bytes, offset_type, offset[0]);
    if (raised)
      for (int64_t i = 0; i < count; i += LANES) store(offset[0] + i, load(scale[0] + i) * all(-raised));
    return chunk + bytes;
  }
  int64_t numbers() const { return count; }  // of scales, and of offsets

 private:
  int scale_type, offset_type;
  int64_t count, scale_bytes, bytes;
  float raised;

  void widen(const char* from, int type, float* to) const {
    with_type(type, [=](auto value) {
      for (int64_t i = 0; i < count; i += LANES) store(to + i, load((const decltype(value)*)from + i));
    });
  }
};

}  // namespace quire
