// bfloat16 weights losslessly compressed to 12 bits each: most values of a matrix have one of few exponents.
//
// A step of a panel is VECTORS registers of LANES groups, laid out as in matrix.h. A panel has a range of 16 consecutive
// exponents. A value with an exponent in this range, minus the least exponent, needs only its sign, 4 bits of exponent and
// its mantissa. The words of three registers are stored as they are; the fourth's words are stored in the 4 bits that each
// of them leaves free. Steps with other exponents are stored uncompressed after all panels. For matrix registers, a panel
// is divided into such pieces all the same, each of which is four steps of a tile's width instead.
//
// So decoding few sequences, which is bound by memory, reads three quarters of the bytes. Words are decompressed in
// registers or, if there are more rows than one tile has, into a block that the first tile leaves for the others; for
// matrix registers, see compressed_amx.h.
#pragma once

#include <cstring>

#include "matrix.h"

namespace quire {

constexpr int64_t EXPONENTS = 16;
constexpr int MANTISSA = 7;  // bits
constexpr int64_t STEP_VALUES = PANEL * 2;
constexpr int64_t COMPRESSED_STEP = STEP_VALUES * 12 / 8;  // bytes
constexpr int64_t PLAIN_STEP = STEP_VALUES * 2;
constexpr int PACKED_REGISTERS = VECTORS - 1;

// The header of a panel, before its steps.
struct alignas(LINE) CompressedHead {
  int64_t least;  // of the exponents
  int64_t plain;  // offset in bytes from the matrix's begin of the numbers of its plain steps, which the steps follow
  int64_t count;  // number of plain steps
};

// The same 16 bits in both halves of 32.
constexpr int32_t both_halves(uint32_t bits) { return int32_t(bits << 16 | bits); }

// Masks: a word's own bits in three registers, and the parts of the fourth register's words.
constexpr int32_t OWN_BITS = both_halves(0x87ff);
constexpr int32_t SIGN = both_halves(0x8000), NUMBER = both_halves(0x780);
constexpr int32_t HIGH_MANTISSA = both_halves(0x78), LOW_MANTISSA = both_halves(7);

// Bytes of the numbers of `count` steps, filled up to whole lines.
constexpr int64_t numbers_bytes(int64_t count) { return (count * int64_t(sizeof(int32_t)) + LINE - 1) / LINE * LINE; }

// Bytes of a compressed panel, in whole lines.
constexpr int64_t compressed_panel_bytes(int64_t steps) {
  return (sizeof(CompressedHead) + steps * COMPRESSED_STEP + LINE - 1) / LINE * LINE;
}

// The weights of W, compressed.
template <class W>
struct Compressed {
  using Stored = char;
  using Input = typename W::Input;
  using Total = float;
  using Wide = W;
  static constexpr int GROUP = W::GROUP, ALIGNMENT = W::ALIGNMENT, OFFSET = 0;
  static constexpr bool TILES = W::TILES;
};

// Whether this level has products with compressed weights.
template <class Type>
constexpr bool COMPRESSES = false;
#if defined(__x86_64__)
template <>
constexpr bool COMPRESSES<Bf16Groups> = true;
#endif

// Reads a panel's steps, one after the other.
class Steps {
 public:
  Steps(const char* matrix, const char* panel) : from(panel + sizeof(CompressedHead)) {
    auto head = (const CompressedHead*)panel;
    numbers = (const int32_t*)(matrix + head->plain), last = numbers + head->count;
    plain = matrix + head->plain + numbers_bytes(head->count);
    least = all_ints(both_halves(uint32_t(head->least) << MANTISSA));
    next = numbers < last ? *numbers : -1;
  }

  // The address that is `bytes` after the steps already read.
  const char* ahead(int64_t bytes) const { return from + bytes; }

  // Decompresses the next step's groups: W registers from FIRST on.
  template <int FIRST, int W>
  [[gnu::always_inline]] void read(Ints (&groups)[W]) {
    if (__builtin_expect(step++ == next, 0))
      read_plain<FIRST>(groups);
    else
      decompress<FIRST>(groups);
    from += COMPRESSED_STEP;
  }

  // Skips steps.
  void skip(int64_t count) {
    from += count * COMPRESSED_STEP, step += count;
    while (next >= 0 && next < step) next_plain();
  }

 private:
  const char *from, *plain;
  const int32_t *numbers, *last;
  int64_t step = 0, next;
  Ints least;

  Ints words(int i) const { return load_ints((const int32_t*)from + i * LANES); }

  template <int FIRST, int W>
  [[gnu::always_inline]] void decompress(Ints (&groups)[W]) const {
#pragma GCC unroll 4
    for (int i = FIRST; i < FIRST + W; ++i) {
      Ints own;
      if (i < PACKED_REGISTERS) {
        own = words(i) & all_ints(OWN_BITS);
      } else {
        own = shift_right<4>(words(0)) & all_ints(NUMBER);
        own = with_bits(own, shift_right<8>(words(1)), all_ints(HIGH_MANTISSA));
        own = with_bits(own, shift_right<11>(words(2)), all_ints(LOW_MANTISSA));
        own = with_bits(own, words(2) + words(2), all_ints(SIGN));
      }
      groups[i - FIRST] = own + least;
    }
  }

  template <int FIRST, int W>
  void read_plain(Ints (&groups)[W]) {
    for (int v = 0; v < W; ++v) groups[v] = load_ints((const int32_t*)plain + (FIRST + v) * LANES);
    next_plain();
  }

  void next_plain() { plain += PLAIN_STEP, next = ++numbers < last ? *numbers : -1; }
};

// Rows times steps of W registers from FIRST on; see multiply in matrix.h. KEEP stores the weights in part.wide.
template <class Type, int ROWS, int FIRST, int W, bool KEEP>
[[gnu::noinline]] void multiply_compressed(Steps& panel, Part<Type> part) {
  Steps steps = panel;
  Floats local[ROWS][W];
#pragma GCC unroll 24
  for (int i = 0; i < ROWS * W; ++i)
    local[i / W][i % W] = part.fresh ? zero() : load(part.sums + i / W * PANEL + i % W * LANES);
  for (int64_t k = 0; k < part.steps; ++k) {
    part.ahead.fetch();
    Ints groups[W];
    steps.read<FIRST>(groups);
#pragma GCC unroll 2
    for (int p = 0; p < Type::PARTS; ++p) {
      typename Type::Weight weights[W];
#pragma GCC unroll 4
      for (int v = 0; v < W; ++v) {
        weights[v] = Type::part_of(groups[v], p);
        if constexpr (KEEP) std::memcpy(part.wide + v * LANES * Type::Wide::GROUP, &weights[v], sizeof(weights[v]));
      }
      if constexpr (KEEP) part.wide += PANEL * Type::Wide::GROUP;
#pragma GCC unroll 12
      for (int m = 0; m < ROWS; ++m) {
        auto value = Type::input(part.input + m * part.stride);
#pragma GCC unroll 4
        for (int v = 0; v < W; ++v) local[m][v] = Type::add(local[m][v], value, weights[v]);
      }
      part.input += Type::GROUP / Type::PARTS;
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < ROWS * W; ++i) store(part.sums + i / W * PANEL + i % W * LANES, local[i / W][i % W]);
  panel = steps;
}

// The same for `rows` rows, up to MOST.
template <class Type, int FIRST, int W, bool KEEP, int MOST>
void multiply_compressed_rows(int64_t rows, Steps& panel, const Part<Type>& part) {
  if constexpr (MOST > 1)
    if (rows < MOST) return multiply_compressed_rows<Type, FIRST, W, KEEP, MOST - 1>(rows, panel, part);
  multiply_compressed<Type, MOST, FIRST, W, KEEP>(panel, part);
}

// A tile, in passes over its panel's width; each prefetches its own share.
template <class Type, int W, bool KEEP, int MOST, int FIRST = 0>
void multiply_compressed_tile(int64_t rows, Steps& panel, Part<Type> part) {
  Steps again = panel;
  multiply_compressed_rows<Type, FIRST, W, KEEP, MOST>(rows, panel, part);
  if constexpr (FIRST + W < VECTORS) {
    part.sums += W * LANES, part.ahead.next += part.steps * part.ahead.lines * LINE;
    if constexpr (KEEP) part.wide += W * LANES * Type::Wide::GROUP;
    multiply_compressed_tile<Type, W, KEEP, MOST, FIRST + W>(rows, panel = again, part);
  }
}

// Up to how many rows the sums of a whole panel's width are in registers together with a step's groups.
constexpr int FEW_COMPRESSED_ROWS = REGISTERS == 32 ? MOST_ROWS : 2;

// The sums [rows, PANEL] of rows [first, last), at most ROWS, against one panel.
template <class Type, std::enable_if_t<!Type::TILES, int> = 0>
void sum_panel(const Operands<Compressed<Type>>& call, int64_t first, int64_t last, int64_t index, float* sums) {
  using Wide = typename Type::Wide;
  constexpr bool SAME = std::is_same_v<Type, Wide>;
  constexpr int64_t WIDE_STEPS = SAME ? 1 : Type::PARTS;
  constexpr int64_t WIDE_STEP_BYTES = WIDE_STEPS * PANEL * Wide::GROUP * sizeof(typename Wide::Stored);
  auto lines_of = [](int64_t rounds) { return int((COMPRESSED_STEP + rounds * LINE - 1) / (rounds * LINE)); };
  Steps panel(call.weight, call.panel(index));
  Part<Type> part{call.input + first * call.stride, call.stride, nullptr, call.steps, true, sums, {}, nullptr};
  int64_t rows = last - first;
  if (rows <= FEW_COMPRESSED_ROWS) {
    part.ahead = {panel.ahead(AHEAD_BYTES), lines_of(1)};
    return multiply_compressed_tile<Type, VECTORS, false, FEW_COMPRESSED_ROWS>(rows, panel, part);
  }
  alignas(LINE) typename Wide::Stored wide[BLOCK_BYTES / sizeof(typename Wide::Stored)];
  bool tall = !SAME && rows <= TALL_ROWS;
  int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS, height = (rows + tiles - 1) / tiles;
  int64_t rounds = tall ? VECTORS / TALL_WIDTH : (1 + (tiles - 1) * WIDE_STEPS) * (VECTORS / WIDTH);
  int64_t left = call.steps, most = (tiles <= FEW_TILES ? SHORT_BLOCK_BYTES : BLOCK_BYTES) / WIDE_STEP_BYTES;
  for (int64_t blocks = (left + most - 1) / most; blocks > 0; --blocks, left -= part.steps) {  // of about the same length
    part.steps = (left + blocks - 1) / blocks;
    int64_t bytes = part.steps * COMPRESSED_STEP;
    part.ahead = {panel.ahead(bytes), lines_of(rounds)}, part.wide = wide;
    if constexpr (!SAME)
      if (tall) multiply_compressed_tile<Type, TALL_WIDTH, false, TALL_ROWS>(rows, panel, part);
    if (!tall) {
      const char* end = part.ahead.next + bytes;
      multiply_compressed_tile<Type, WIDTH, true, MOST_ROWS>(height, panel, part);
      part.ahead.next += VECTORS / WIDTH * part.steps * part.ahead.lines * LINE;
      multiply_tiles(rows - height,
                     Part<Wide>{part.input + height * part.stride, part.stride, wide, part.steps * WIDE_STEPS, part.fresh,
                                sums + height * PANEL, part.ahead, nullptr},
                     end);
    }
    part.input += part.steps * Type::GROUP, part.fresh = false;
  }
}

}  // namespace quire
