// Weights in 4-bit or 8-bit codes: grid[code] * scale + offset.
//
// A panel consists of chunks of CHUNK inputs. A chunk has the scales [spans, PANEL], the offsets likewise if there are any,
// and the codes. Inputs of a span share a scale. 4-bit codes are words of 32 bits, [CHUNK / 8, PANEL], with the codes of
// eight inputs each: even inputs in the lower half, odd inputs in the upper half, the first of each half in its lowest bits.
// 8-bit codes are [CHUNK, PANEL]. With matrix registers, the order of codes is different (coded_amx.h, coded_pairs.h).
//
// Without matrix registers, the grid numbers of 4-bit codes are multiplied, and the sums of spans are scaled afterwards;
// likewise for 8-bit codes where single values are multiplied instead of pairs of bfloat16: coded_spans.h. All other
// products dequantize the codes and equal products with dequantized weights bit for bit: coded_wide.h.
#pragma once

#include <cstring>

#include "matrix.h"
#include "types.h"

namespace quire {

constexpr int64_t CHUNK = 128;  // inputs
constexpr int64_t MOST_SPANS = 8;

// E4M3_TABLES is e4m3 with spans of at least 64 inputs and no offsets, all of whose scaled numbers are zeros or normal
// bfloat16 numbers; see coded_amx.h.
enum Codes { NIBBLES, INT8_CODES, E4M3_CODES, E5M2_CODES, E4M3_TABLES };

// The caller's description of a weight.
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

// Coded weights that are dequantized to weights of W; see groups.h.
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

// Prefetches what comes AHEAD_BYTES and NEAR_BYTES after the `bytes` being read: into the second-level cache, and from
// there into the first. The product of a tile fills the out-of-order window, so the processor cannot look ahead itself.
constexpr int64_t NEAR_BYTES = 1 << 10;

[[gnu::always_inline]] inline void prefetch_coded(const char* from, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += LINE)
    prefetch_far(from + AHEAD_BYTES + line), prefetch(from + NEAR_BYTES + line);
}

// A chunk's scales and offsets in float32.
struct Scales {
  alignas(LINE) float scale[MOST_SPANS][PANEL], offset[MOST_SPANS][PANEL];

  // The kernel may load numbers that are higher by `raised`. If the form has no offsets, offsets compensate for this.
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
