// Weights of bfloat16 in 12 bits each, bit for bit what they were: most of a matrix's exponents are a few.
//
// A step of a panel is VECTORS registers of LANES groups, each as it lies in matrix.h. A value becomes a word of 12 bits: its
// mantissa, its sign and which of 16 exponents it has. Those of three registers are the lower bits of three, the fourth's are
// their upper 4 bits. A panel has its own exponents, which are consecutive (the last may be zero's); a step that has another
// one stands, as it was, behind all panels.
//
// So a decode of few sequences, which waits for memory, reads three quarters of it. Words become values in registers, or, with
// more rows than one tile has, in a block that the first tile leaves for the others.
#pragma once

#include <cstring>

#include "matrix.h"

namespace quire {

constexpr int64_t EXPONENTS = 16;
constexpr int64_t STEP_VALUES = PANEL * 2;
constexpr int64_t COMPRESSED_STEP = STEP_VALUES * 12 / 8;  // bytes
constexpr int64_t PLAIN_STEP = STEP_VALUES * 2;
constexpr int PACKED_REGISTERS = VECTORS - 1;

// What stands before a panel's steps.
struct alignas(LINE) CompressedHead {
  uint16_t table[2 * EXPONENTS];  // by sign and number of the exponent: a value without its mantissa
  int64_t plain;                  // where the numbers of its plain steps are, in bytes from the matrix's begin; steps follow
  int64_t count;                  // of those
};

// The numbers of `count` steps, and what fills the last line.
constexpr int64_t numbers_bytes(int64_t count) { return (count * int64_t(sizeof(int32_t)) + LINE - 1) / LINE * LINE; }

constexpr int64_t compressed_panel_bytes(int64_t steps) { return sizeof(CompressedHead) + steps * COMPRESSED_STEP; }

// Those of W, compressed.
template <class W>
struct Compressed {
  using Stored = char;
  using Input = typename W::Input;
  using Total = float;
  using Wide = W;
  static constexpr int GROUP = W::GROUP, ALIGNMENT = 1, OFFSET = 0;
  static constexpr bool TILES = false;
};
template <class Type>
constexpr bool IS_COMPRESSED = false;
template <class Wide>
constexpr bool IS_COMPRESSED<Compressed<Wide>> = true;

// Whether this level's products take them.
template <class Type>
constexpr bool COMPRESSES = false;
#if defined(__AVX512BF16__) && !defined(__AMX_TILE__)
template <>
constexpr bool COMPRESSES<Bf16Groups> = true;
#endif

// A panel's steps, one after the other.
template <class Wide>
class Steps {
 public:
  using Weight = typename Wide::Weight;

  Steps(const char* matrix, const char* panel) : from(panel + sizeof(CompressedHead)) {
    auto head = (const CompressedHead*)panel;
    numbers = (const int32_t*)(matrix + head->plain), last = numbers + head->count;
    plain = matrix + head->plain + numbers_bytes(head->count);
    table = Wide::load_table(head->table);
    next = numbers < last ? *numbers : -1;
  }

  // Where what lies so many bytes behind the steps that have been read begins.
  const char* ahead(int64_t bytes) const { return from + bytes; }

  [[gnu::always_inline]] void read(Weight (&weights)[VECTORS]) {
    if (__builtin_expect(step++ == next, 0))
      read_plain(weights);
    else
      Wide::decompress(from, table, weights);
    from += COMPRESSED_STEP;
  }

 private:
  const char *from, *plain;
  const int32_t *numbers, *last;
  int64_t step = 0, next;
  Weight table;

  void read_plain(Weight (&weights)[VECTORS]) {
    auto values = (const typename Wide::Stored*)plain;
    for (int v = 0; v < VECTORS; ++v) weights[v] = Wide::weight(values + v * LANES * Wide::GROUP, 0);
    plain += PLAIN_STEP;
    next = ++numbers < last ? *numbers : -1;
  }
};

// Some rows times some steps: see multiply in matrix.h. KEEP: values are left in part.wide.
template <class Wide, int ROWS, bool KEEP>
[[gnu::noinline]] void multiply_compressed(Steps<Wide>& panel, Part<Wide> part) {
  Steps<Wide> steps = panel;
  typename Wide::Sum local[ROWS][VECTORS];
#pragma GCC unroll 24
  for (int i = 0; i < ROWS * VECTORS; ++i)
    local[i / VECTORS][i % VECTORS] = part.fresh ? zero() : load(part.sums + i * LANES);
  for (int64_t k = 0; k < part.steps; ++k, part.input += Wide::GROUP) {
    part.ahead.fetch();
    typename Wide::Weight weights[VECTORS];
    steps.read(weights);
    if constexpr (KEEP) {
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) std::memcpy(part.wide + v * LANES * Wide::GROUP, &weights[v], sizeof(weights[v]));
      part.wide += STEP_VALUES;
    }
#pragma GCC unroll 6
    for (int m = 0; m < ROWS; ++m) {
      auto value = Wide::input(part.input + m * part.stride);
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) local[m][v] = Wide::add(local[m][v], value, weights[v]);
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < ROWS * VECTORS; ++i) store(part.sums + i * LANES, local[i / VECTORS][i % VECTORS]);
  panel = steps;
}

// The same of so many rows, up to MOST.
template <class Wide, bool KEEP, int MOST = MOST_ROWS>
void multiply_compressed_rows(int64_t rows, Steps<Wide>& panel, const Part<Wide>& part) {
  if constexpr (MOST > 1)
    if (rows < MOST) return multiply_compressed_rows<Wide, KEEP, MOST - 1>(rows, panel, part);
  multiply_compressed<Wide, MOST, KEEP>(panel, part);
}

// The sums [rows, PANEL] of rows [first, last), at most ROWS, against one panel.
template <class Wide>
void sum_panel(const Operands<Compressed<Wide>>& call, int64_t first, int64_t last, int64_t index, float* sums) {
  constexpr int64_t LINES = COMPRESSED_STEP / LINE;
  Steps<Wide> panel(call.weight, call.panel(index));
  Part<Wide> part{call.input + first * call.stride, call.stride, nullptr, call.steps, true, sums, {}, nullptr};
  int64_t rows = last - first;
  if (rows <= MOST_ROWS) {
    part.ahead = {panel.ahead(AHEAD_BYTES), LINES};
    return multiply_compressed_rows<Wide, false>(rows, panel, part);
  }
  alignas(LINE) typename Wide::Stored wide[BLOCK_BYTES / sizeof(typename Wide::Stored)];
  int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS, height = (rows + tiles - 1) / tiles;
  int64_t left = call.steps, most = (tiles <= FEW_TILES ? SHORT_BLOCK_BYTES : BLOCK_BYTES) / PLAIN_STEP;
  for (int64_t blocks = (left + most - 1) / most; blocks > 0; --blocks, left -= part.steps) {  // of about the same length
    part.steps = (left + blocks - 1) / blocks;
    int64_t bytes = part.steps * COMPRESSED_STEP;
    part.ahead = {panel.ahead(bytes), int((LINES + tiles - 1) / tiles)}, part.wide = wide;
    const char* end = part.ahead.next + bytes;
    multiply_compressed_rows<Wide, true>(height, panel, part);
    part.ahead.next += part.steps * part.ahead.lines * LINE;
    multiply_tiles(rows - height,
                   Part<Wide>{part.input + height * part.stride, part.stride, wide, part.steps, part.fresh,
                              sums + height * PANEL, part.ahead, nullptr},
                   end);
    part.input += part.steps * Wide::GROUP, part.fresh = false;
  }
}

}  // namespace quire
