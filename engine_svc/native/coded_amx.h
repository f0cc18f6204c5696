// Sums of a panel of coded weights by AMX's matrix registers (tiles); for int8, see coded_pairs.h.
//
// Here, an output's codes of a chunk are contiguous. 4-bit codes are 32 words of four codes each, so that a shift by 4 * i
// brings the codes of inputs 32 * i to 32 * i + 31 into the words' lowest bits; 8-bit codes are 128 bytes in the order of
// inputs. For 4-bit codes, the 16 possible weights of a span are computed first, scaled and rounded, and then looked up 32
// at a time. So an output's weights end up in a row: tiles have outputs as rows and input rows as columns, see IN_STRIPS.
// This is the same product in the same order as with rows and columns exchanged.
#pragma once

#include "coded.h"
#include "tiles.h"

namespace quire {

constexpr int64_t TILE_INPUTS = 32, CHUNK_TILES = CHUNK / TILE_INPUTS;
constexpr int64_t BLOCK_CHUNKS = 4;  // with several strips: chunks that stay in the first-level cache for all of them
constexpr int64_t WIDE_CHUNK = CHUNK * PANEL;

inline Ints round_both(Floats first, Floats second) { return (Ints)_mm512_cvtne2ps_pbh(second, first); }

// The possible weights of an output in two spans, or in one span twice: bfloat16 [2, 16].
inline Ints span_tables(const Scales& scales, Table grid, int64_t n, int64_t one, int64_t other) {
  auto numbers = [&](int64_t span) { return fma(grid, all(scales.scale[span][n]), all(scales.offset[span][n])); };
  Floats first = numbers(one);
  return round_both(first, one == other ? first : numbers(other));
}

// Dequantizes LINES outputs of a chunk, from the n-th on, to bfloat16 [CHUNK_TILES, PANEL, TILE_INPUTS].
constexpr int64_t LINES = 4;

template <int SPAN>
struct NibbleRows {
  static void widen(const char* codes, const Scales& scales, Table grid, int64_t first, bf16* to) {
    Ints low = _mm512_set1_epi16(15), high = _mm512_set1_epi16(16);
    Ints high_half = _mm512_inserti64x4(all_ints(0), _mm256_set1_epi16(16), 1);
#pragma GCC unroll 4
    for (int64_t n = first; n < first + LINES; ++n) {
      prefetch_coded(codes + n * LINE, LINE);
      Ints places = _mm512_loadu_si512(codes + n * LINE), tables{};
#pragma GCC unroll 4
      for (int i = 0; i < CHUNK_TILES; ++i, places = _mm512_srli_epi16(places, 4)) {
        if (SPAN == 16) tables = span_tables(scales, grid, n, 2 * i, 2 * i + 1);
        if (SPAN == 32 && i % 2 == 0) tables = span_tables(scales, grid, n, i, i + 1);
        if (SPAN == 64 && i % 2 == 0) tables = span_tables(scales, grid, n, i / 2, i / 2);
        if (SPAN == 128 && i == 0) tables = span_tables(scales, grid, n, 0, 0);
        // The index into the two spans' numbers: code & 15, or'ed with 16 for the second span.
        Ints place = places;
        if (SPAN == 16) place = _mm512_ternarylogic_epi32(places, low, high_half, 0xea);
        if (SPAN == 32) place = i % 2 ? _mm512_ternarylogic_epi32(places, low, high, 0xea) : _mm512_and_si512(places, low);
        _mm512_store_si512(to + (i * PANEL + n) * TILE_INPUTS, _mm512_permutexvar_epi16(place, tables));
      }
    }
  }
};

template <class Code, int SPAN>
struct ByteRows {
  static void widen(const char* codes, const Scales& scales, Table, int64_t first, bf16* to) {
#pragma GCC unroll 4
    for (int64_t n = first; n < first + LINES; ++n) {
      auto from = (const Code*)codes + n * CHUNK;
      prefetch_coded((const char*)from, 2 * LINE);
      auto half = [&](int64_t k) {
        return fma(load(from + k), all(scales.scale[k / SPAN][n]), all(scales.offset[k / SPAN][n]));
      };
#pragma GCC unroll 4
      for (int64_t k = 0; k < CHUNK; k += TILE_INPUTS)
        _mm512_store_si512(to + k * PANEL + n * TILE_INPUTS, round_both(half(k), half(k + LANES)));
    }
  }
};

template <class Rows>
void widen_chunk(const char* chunk, Scales& scales, Table grid, bf16* to) {
  const char* codes = scales.read(chunk);
  for (int64_t n = 0; n < PANEL; n += LINES) Rows::widen(codes, scales, grid, n, to);
}

// e4m3 numbers as they are loaded (divided by 256): eight each for the exponents 1, 2 and 3, and for 0 as if it were a
// normal exponent; and the subnormal numbers that exponent 0 really stands for.
struct E4m3Numbers {
  alignas(LINE) float values[3 * LANES] = {};

  E4m3Numbers() {
    for (int i = 0; i < 32; ++i) values[i] = float(8 + i % 8) * float(1 << i / 8) / float(1 << 18);
    for (int i = 0; i < 8; ++i) values[32 + i] = float(i) / float(1 << 17);
  }
};
inline const E4m3Numbers E4M3_NUMBERS;

// E4M3_TABLES: the five lowest bits of a code give the number except for its sign and a power of 16, which are added to the
// bits of the rounded number. Words have the codes of two tiles' inputs.
template <int SPAN>
struct E4m3Rows {
  struct Tables {
    Floats scale;
    Ints normal;

    Tables(const Scales& scales, int64_t n, int64_t span)
        : scale(all(scales.scale[span][n])), normal(round_both(numbers(0), numbers(1))) {}
    // The codes are the lower bytes of words.
    Ints look_up(Ints codes) const { return _mm512_permutexvar_epi16(codes, normal); }
    Ints look_up_subnormal(Ints codes, Ints found) const {
      __mmask32 which = _mm512_testn_epi16_mask(codes, _mm512_set1_epi16(0x78));
      return _mm512_mask_permutexvar_epi16(found, which, codes, _mm512_castsi256_si512(narrow_bf16(numbers(2))));
    }

   private:
    Floats numbers(int i) const { return load(E4M3_NUMBERS.values + i * LANES) * scale; }
  };

  static void widen(const char* codes, const Scales& scales, Table, int64_t first, bf16* to) {
    Ints nibbles = _mm512_set1_epi8(15), upper = _mm512_set1_epi16(int16_t(0xff00)), exponent = _mm512_set1_epi8(0x78);
    Ints powers = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 2, 2, 4, 4, 6, 6, -128, -128, -126, -126, -124, -124, -122, -122));
    for (int64_t n = first; n < first + LINES; ++n) {
      prefetch_coded(codes + n * CHUNK, 2 * LINE);
      Tables tables(scales, n, 0);
#pragma GCC unroll 2
      for (int64_t k = 0; k < CHUNK; k += 2 * TILE_INPUTS) {
        if (k && k % SPAN == 0) tables = Tables(scales, n, k / SPAN);
        Ints both = _mm512_loadu_si512(codes + n * CHUNK + k);
        Ints power = _mm512_shuffle_epi8(powers, _mm512_and_si512(_mm512_srli_epi16(both, 4), nibbles));
        Ints others = _mm512_srli_epi16(both, 8);
        Ints low = tables.look_up(both), high = tables.look_up(others);
        if (__builtin_expect(_mm512_testn_epi8_mask(both, exponent), 0))  // subnormal numbers are rare
          low = tables.look_up_subnormal(both, low), high = tables.look_up_subnormal(others, high);
        low = _mm512_add_epi16(low, _mm512_slli_epi16(power, 8));
        high = _mm512_add_epi16(high, _mm512_and_si512(power, upper));
        _mm512_store_si512(to + k * PANEL + n * TILE_INPUTS, low);
        _mm512_store_si512(to + (k + TILE_INPUTS) * PANEL + n * TILE_INPUTS, high);
      }
    }
  }
};

// Calls `call` with the object that dequantizes a form's codes.
template <class Call>
void with_rows(const CodedForm& form, const Call& call) {
  auto with_span = [&](auto span) {
    constexpr int SPAN = decltype(span)::value;
    switch (form.codes) {
      case NIBBLES: return call(NibbleRows<SPAN>{});
      case E4M3_CODES: return call(ByteRows<e4m3, SPAN>{});
      case E5M2_CODES: return call(ByteRows<e5m2, SPAN>{});
      case E4M3_TABLES: return call(E4m3Rows<std::max(SPAN, 64)>{});
    }
  };
  switch (form.span) {
    case 16: return with_span(std::integral_constant<int, 16>{});
    case 32: return with_span(std::integral_constant<int, 32>{});
    case 64: return with_span(std::integral_constant<int, 64>{});
    case 128: return with_span(std::integral_constant<int, 128>{});
  }
}

// Tiles 0 to 3 are sums: with one strip, of the whole panel; with two, of half a panel for the first strip (0, 1) and for
// the second (2, 3). Tiles 4 and 5 are weights; 6 and 7 are the inputs of both strips.
inline void shape_strips(int64_t first, int64_t second) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) shapes.set(tile, STRIP, tile == 4 || tile == 5 ? LINE : 4 * first);
  if (second)
    for (int tile : {2, 3, 7}) shapes.set(tile, STRIP, 4 * second);
  shapes.use();
}

constexpr int64_t SQUARE = 16 * STRIP;          // sums of a tile [16 outputs, STRIP]
constexpr int64_t TILE_STEP = 16 * TILE_INPUTS;  // from a tile of weights to that of the next outputs

// Adds the products of `tiles` tiles along the inputs to the sums of a strip of `count` rows.
inline void add_strip(const bf16* input, int64_t count, const bf16* wide, int64_t tiles) {
  for (int64_t i = 0; i < tiles; ++i, input += TILE_INPUTS * count, wide += PANEL * TILE_INPUTS) {
    _tile_loadd(6, input, 4 * count);
    _tile_loadd(4, wide, LINE);
    _tile_loadd(5, wide + TILE_STEP, LINE);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(4, wide + 2 * TILE_STEP, LINE);
    _tile_dpbf16ps(1, 5, 6);
    _tile_loadd(5, wide + 3 * TILE_STEP, LINE);
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(3, 5, 6);
  }
}

// The same for two strips, the first of which is complete, and half a panel.
inline void add_strips(const bf16* first, const bf16* second, int64_t count, const bf16* wide, int64_t tiles) {
  for (int64_t i = 0; i < tiles; ++i, wide += PANEL * TILE_INPUTS) {
    _tile_loadd(4, wide, LINE);
    _tile_loadd(6, first, LINE);
    _tile_loadd(5, wide + TILE_STEP, LINE);
    _tile_loadd(7, second, 4 * count);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
    first += TILE_INPUTS * STRIP, second += TILE_INPUTS * count;
  }
}

// Transposes sums [PANEL, STRIP] to [STRIP, PANEL].
inline void turn_sums(float* sums) {
  alignas(LINE) float turned[PANEL * STRIP];
  std::memcpy(turned, sums, sizeof(turned));
  for (int64_t v = 0; v < VECTORS; ++v) {
    Floats square[LANES];
    for (int64_t i = 0; i < LANES; ++i) square[i] = load(turned + v * SQUARE + i * STRIP);
    transpose(square);
    for (int64_t row = 0; row < STRIP; ++row) store(sums + row * PANEL + v * LANES, square[row]);
  }
}

// A chunk's product with a strip, interleaved with dequantizing the next chunk, so that neither waits for the other.
template <class Rows>
void add_strip_and_widen(const bf16* input, int64_t count, const bf16* wide, const char* codes, const Scales& scales,
                         Table grid, bf16* next) {
  for (int64_t i = 0, n = 0; i < CHUNK_TILES; ++i, n += 16, input += TILE_INPUTS * count, wide += PANEL * TILE_INPUTS) {
    _tile_loadd(6, input, 4 * count);
    _tile_loadd(4, wide, LINE);
    _tile_dpbf16ps(0, 4, 6);
    Rows::widen(codes, scales, grid, n, next);
    _tile_loadd(5, wide + TILE_STEP, LINE);
    _tile_dpbf16ps(1, 5, 6);
    Rows::widen(codes, scales, grid, n + 4, next);
    _tile_loadd(4, wide + 2 * TILE_STEP, LINE);
    _tile_dpbf16ps(2, 4, 6);
    Rows::widen(codes, scales, grid, n + 8, next);
    _tile_loadd(5, wide + 3 * TILE_STEP, LINE);
    _tile_dpbf16ps(3, 5, 6);
    Rows::widen(codes, scales, grid, n + 12, next);
  }
}

// Stores the sums of a strip in tiles 0 to 3 as [STRIP, PANEL]; for a single row they need not be transposed.
inline void store_strip(int64_t count, float* sums) {
  int64_t step = count == 1 ? STRIP : SQUARE;
  store_sums(sums, sums + step, sums + 2 * step, sums + 3 * step, count == 1 ? int64_t(sizeof(float)) : LINE);
  tile_fence();
  if (count > 1) turn_sums(sums);
}

// Up to a strip of rows with consecutive panels [begin, end): while the last chunk of one panel is multiplied, the first of
// the next is dequantized. Calls take(index, sums [rows, PANEL]) for each panel.
template <class Rows, class Take>
void sum_strip(const Operands<Coded<Bf16Groups>>& call, int64_t first, int64_t count, int64_t begin, int64_t end,
               const Take& take) {
  alignas(LINE) bf16 wide[2][WIDE_CHUNK];
  alignas(LINE) float sums[STRIP * PANEL];
  Table grid = table(call.form->grid);
  Scales scales(*call.form);
  const char* chunk = call.panel(begin);
  int64_t chunks = call.steps / CHUNK, left = (end - begin) * chunks, bytes = call.form->chunk_bytes();
  widen_chunk<Rows>(chunk, scales, grid, wide[left % 2]);
  shape_strips(count, 0);
  for (int64_t index = begin; index < end; ++index) {
    load_sums(sums, sums, sums, sums, LINE, true);
    const bf16* input = call.input + first * call.stride;
    for (int64_t i = 0; i < chunks; ++i, --left, input += CHUNK * count) {
      const bf16* now = wide[left % 2];
      chunk += bytes;
      tile_fence();
      if (left > 1)
        add_strip_and_widen<Rows>(input, count, now, scales.read(chunk), scales, grid, wide[1 - left % 2]);
      else
        add_strip(input, count, now, CHUNK_TILES);
    }
    store_strip(count, sums);
    take(index, sums);
  }
  _tile_release();
}

// The same for half a panel with two strips, the first of which is complete.
template <class Rows>
void add_strips_and_widen(const bf16* first, const bf16* second, int64_t count, int64_t half, const bf16* wide,
                          const char* codes, const Scales& scales, Table grid, bf16* next) {
  wide += half * 2 * TILE_STEP;
  for (int64_t i = 0, n = half * PANEL / 2; i < CHUNK_TILES; ++i, n += 2 * LINES, wide += PANEL * TILE_INPUTS) {
    _tile_loadd(4, wide, LINE);
    _tile_loadd(6, first, LINE);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, wide + TILE_STEP, LINE);
    _tile_dpbf16ps(1, 5, 6);
    Rows::widen(codes, scales, grid, n, next);
    _tile_loadd(7, second, 4 * count);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
    Rows::widen(codes, scales, grid, n + LINES, next);
    first += TILE_INPUTS * STRIP, second += TILE_INPUTS * count;
  }
}

// The sums of a strip and `count` rows of another.
template <class Rows>
void sum_two_strips(const Operands<Coded<Bf16Groups>>& call, int64_t first, int64_t count, int64_t index, float* sums) {
  alignas(LINE) bf16 wide[2][WIDE_CHUNK];
  Table grid = table(call.form->grid);
  Scales scales(*call.form);
  int64_t last = call.steps / CHUNK - 1, bytes = call.form->chunk_bytes();
  shape_strips(STRIP, count);
  for (int64_t half = 0; half < 2; ++half) {
    const bf16 *one = call.input + first * call.stride, *other = one + STRIP * call.stride;
    const char *chunk = call.panel(index), *codes = scales.read(chunk);
    float *to = sums + half * 2 * SQUARE, *others = to + STRIP * PANEL;
    for (int64_t n = 0; n < PANEL / 2; n += LINES) Rows::widen(codes, scales, grid, half * PANEL / 2 + n, wide[0]);
    load_sums(to, to, to, to, LINE, true);
    for (int64_t i = 0; i < last; ++i, one += CHUNK * STRIP, other += CHUNK * count) {
      codes = scales.read(chunk += bytes);
      tile_fence();
      add_strips_and_widen<Rows>(one, other, count, half, wide[i % 2], codes, scales, grid, wide[1 - i % 2]);
    }
    tile_fence();
    add_strips(one, other, count, wide[last % 2] + half * 2 * TILE_STEP, CHUNK_TILES);
    store_sums(to, to + SQUARE, others, others + SQUARE, LINE);
    tile_fence();
  }
}

// Adds the products of a dequantized block of inputs, `tiles` tiles long, to the sums of several strips.
inline void add_block(const Operands<Coded<Bf16Groups>>& call, int64_t begin, int64_t first, int64_t last,
                      const bf16* wide, int64_t tiles, float* sums) {
  bool fresh = begin == 0;
  auto input = [&](int64_t row) { return call.input + row * call.stride + begin * std::min(STRIP, last - row); };
  int64_t shaped = 0, row = first;
  for (int half = 0; half < 2; ++half)
    for (row = first; row + STRIP < last; row += 2 * STRIP) {
      int64_t count = std::min(STRIP, last - row - STRIP);
      if (count != shaped) shape_strips(STRIP, shaped = count);
      float* one = sums + (row - first) * PANEL + half * 2 * SQUARE;
      float* other = one + STRIP * PANEL;
      load_sums(one, one + SQUARE, other, other + SQUARE, LINE, fresh);
      add_strips(input(row), input(row + STRIP), count, wide + half * 2 * TILE_STEP, tiles);
      store_sums(one, one + SQUARE, other, other + SQUARE, LINE);
    }
  if (row >= last) return;
  float* rest = sums + (row - first) * PANEL;
  shape_strips(last - row, 0);
  load_sums(rest, rest + SQUARE, rest + 2 * SQUARE, rest + 3 * SQUARE, LINE, fresh);
  add_strip(input(row), last - row, wide, tiles);
  store_sums(rest, rest + SQUARE, rest + 2 * SQUARE, rest + 3 * SQUARE, LINE);
}

template <class Rows>
void sum_strips(const Operands<Coded<Bf16Groups>>& call, int64_t first, int64_t last, int64_t index, float* sums) {
  alignas(LINE) bf16 wide[BLOCK_CHUNKS * WIDE_CHUNK];
  Table grid = table(call.form->grid);
  Scales scales(*call.form);
  const char* chunk = call.panel(index);
  for (int64_t begin = 0, bytes = call.form->chunk_bytes(); begin < call.steps; begin += BLOCK_CHUNKS * CHUNK) {
    int64_t chunks = std::min(BLOCK_CHUNKS, (call.steps - begin) / CHUNK);
    for (int64_t i = 0; i < chunks; ++i, chunk += bytes)
      widen_chunk<Rows>(chunk, scales, grid, wide + i * WIDE_CHUNK);
    tile_fence();
    add_block(call, begin, first, last, wide, chunks * CHUNK_TILES, sums);
    tile_fence();
  }
}

// Rows [first, last), arranged in strips, with panels [begin, end). Calls take(index, sums [rows, PANEL]) for each panel.
template <class Take>
void sum_panels_of_strips(const Operands<Coded<Bf16Groups>>& call, int64_t first, int64_t last, int64_t begin, int64_t end,
                          const Take& take) {
  with_rows(*call.form, [&](auto rows) {
    using Rows = decltype(rows);
    int64_t count = last - first;
    if (count <= STRIP) return sum_strip<Rows>(call, first, count, begin, end, take);
    alignas(LINE) float sums[ROWS<Coded<Bf16Groups>> * PANEL];
    for (int64_t index = begin; index < end; ++index) {
      tile_fence();
      count <= 2 * STRIP ? sum_two_strips<Rows>(call, first, count - STRIP, index, sums)
                         : sum_strips<Rows>(call, first, last, index, sums);
      _tile_release();
      tile_fence();
      for (int64_t row = 0; row < count; row += STRIP) turn_sums(sums + row * PANEL);
      take(index, sums);
    }
  });
}

}  // namespace quire
