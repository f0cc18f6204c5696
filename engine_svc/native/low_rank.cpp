// See low_rank.h. Intermediate results and all sums are float32, and summed in an order that does not depend on the other
// rows of a tile.
#include "low_rank.h"

#include <algorithm>
#include <type_traits>

#include "parallel.h"
#include "recordable.h"
#include "types.h"

using namespace quire;

namespace {

constexpr int TILE_ROWS = LOW_RANK_ROWS;
constexpr int64_t RANKS = 8;      // per task that shrinks
constexpr int64_t OUTPUTS = 512;  // per task that expands
constexpr int ROWS = REGISTERS == 32 ? 4 : 2, OTHERS = 4;  // sums in registers at a time
constexpr int64_t WORTH_A_THREAD = 1 << 14;                // weights

// Inputs times weights, some neighbors at a time.
template <class Value, class Weight>
struct Dot {
  using Left = Floats;
  using Right = Floats;
  static constexpr int STEP = LANES;
  static Left left(const Value* from) { return load(from); }
  static Right right(const Weight* from) { return load(from); }
  static Floats add(Floats sum, Left left, Right right) { return fma(left, right, sum); }
};

#if defined(__AVX512BF16__)
template <>
struct Dot<bf16, bf16> {
  using Left = __m512bh;
  using Right = __m512bh;
  static constexpr int STEP = 2 * LANES;
  static Left left(const bf16* from) { return (__m512bh)_mm512_loadu_si512(from); }
  static Right right(const bf16* from) { return left(from); }
  static Floats add(Floats sum, Left left, Right right) { return _mm512_dpbf16_ps(sum, left, right); }
};
#endif

struct Tiles {
  const int32_t* rows;
  const int32_t* groups;
  int64_t count, sharing;

  // Recorded calls have the most tiles that there can be; tiles after the last one with rows are left out.
  Tiles(const int32_t* rows, const int32_t* groups, int64_t most, int64_t sharing)
      : rows(rows), groups(groups), count(most), sharing(sharing) {
    while (count && groups[count - 1] < 0) --count;
  }

  // The number of rows of a tile; they come before the gaps.
  int height(int64_t tile) const {
    int count = 0;
    while (count < TILE_ROWS && rows[tile * TILE_ROWS + count] >= 0) ++count;
    return count;
  }
  const int32_t* of(int64_t tile) const { return rows + tile * TILE_ROWS; }
  int64_t matrix(int64_t tile) const { return groups[tile] / sharing; }
};

// The last values of a row, followed by zeros.
template <class Value, int COUNT>
struct Tail {
  Value values[COUNT] = {};
  Tail(const Value* from, int64_t count) { std::copy_n(from, count, values); }
};

// sums[m][n] = rows[m] . (weights + n * size), for M rows and N weights.
template <class Value, class Weight, int M, int N>
inline void dot(const Value* const* rows, const Weight* weights, int64_t size, float* sums, int64_t stride) {
  using Type = Dot<Value, Weight>;
  Floats found[M][N];
#pragma GCC unroll 16
  for (int i = 0; i < M * N; ++i) found[i / N][i % N] = zero();
  int64_t k = 0;
  for (; k + Type::STEP <= size; k += Type::STEP) {
    typename Type::Right right[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) right[n] = Type::right(weights + n * size + k);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      auto left = Type::left(rows[m] + k);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) found[m][n] = Type::add(found[m][n], left, right[n]);
    }
  }
  if (k < size)
    for (int m = 0; m < M; ++m) {
      Tail<Value, Type::STEP> left(rows[m] + k, size - k);
      for (int n = 0; n < N; ++n) {
        Tail<Weight, Type::STEP> right(weights + n * size + k, size - k);
        found[m][n] = Type::add(found[m][n], Type::left(left.values), Type::right(right.values));
      }
    }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) sums[m * stride + n] = sum(found[m][n]);
}

// Calls call(first, std::integral_constant) for parts of a count: of MOST while possible, then of half as many, and so on.
template <int MOST, class Call>
inline void in_parts(int64_t first, int64_t count, const Call& call) {
  for (; count >= MOST; first += MOST, count -= MOST) call(first, std::integral_constant<int, MOST>{});
  if constexpr (MOST > 1)
    if (count > 0) in_parts<MOST == 4 ? 2 : 1>(first, count, call);
}

// A tile's rows times `count` weights of `size` values each.
template <class Value, class Weight>
void shrink(const Value* const* rows, int height, const Weight* weights, int64_t count, int64_t size, float* sums,
            int64_t stride) {
  auto some = [&](int64_t first, auto others) {
    in_parts<ROWS>(0, height, [&](int64_t m, auto rows_at_once) {
      dot<Value, Weight, decltype(rows_at_once)::value, decltype(others)::value>(
          rows + m, weights + first * size, size, sums + m * stride + first, stride);
    });
  };
  int64_t n = 0;
  for (; n + OTHERS <= count; n += OTHERS) some(n, std::integral_constant<int, OTHERS>{});
  for (; n < count; ++n) some(n, std::integral_constant<int, 1>{});
}

// outputs[m] += the sums of a row times weights [rank, outputs], for M rows and N vectors of outputs.
template <class Value, class Weight, int M, int N>
inline void add_product(const float* sums, int64_t sums_stride, int64_t rank, const Weight* weights,
                        int64_t weights_stride, Value* const* outputs, int64_t count) {
  Floats found[M][N];
#pragma GCC unroll 16
  for (int i = 0; i < M * N; ++i) found[i / N][i % N] = zero();
  for (int64_t r = 0; r < rank; ++r, weights += weights_stride) {
    Floats right[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
      right[n] = N > 1 ? load(weights + n * LANES) : load(weights, count);  // a single vector may be incomplete
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      Floats left = all(sums[m * sums_stride + r]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) found[m][n] = fma(left, right[n], found[m][n]);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) {
      Value* to = outputs[m] + n * LANES;
      if constexpr (N > 1)
        store(to, load(to) + found[m][n]);
      else
        store(to, load(to, count) + found[m][n], count);
    }
}

template <class Value, class Weight>
void expand(const float* sums, int64_t sums_stride, int64_t rank, const Weight* weights, int64_t weights_stride,
            Value* const* outputs, int height, int64_t count) {
  auto some = [&](int64_t first, auto vectors) {
    constexpr int N = decltype(vectors)::value;
    in_parts<ROWS>(0, height, [&](int64_t m, auto rows) {
      constexpr int M = decltype(rows)::value;
      Value* at[M];
      for (int i = 0; i < M; ++i) at[i] = outputs[m + i] + first;
      add_product<Value, Weight, M, N>(sums + m * sums_stride, sums_stride, rank, weights + first, weights_stride, at,
                                       std::min<int64_t>(N * LANES, count - first));
    });
  };
  int64_t n = 0;
  for (; n + OTHERS * LANES <= count; n += OTHERS * LANES) some(n, std::integral_constant<int, OTHERS>{});
  for (; n < count; n += LANES) some(n, std::integral_constant<int, 1>{});
}

template <class Value, class Weight>
void shrink_tiles(const Value* input, int64_t stride, const Weight* weights, const int32_t* ranks, int64_t parts,
                  int64_t rank, int64_t size, const Tiles& tiles, float* sums) {
  int64_t pieces = (rank + RANKS - 1) / RANKS;
  parallel_for(tiles.count * parts * pieces, tiles.count * parts * rank * size > WORTH_A_THREAD, [&](int64_t task) {
    int64_t tile = task / pieces / parts, part = task / pieces % parts, first = task % pieces * RANKS;
    if (tiles.groups[tile] < 0) return;
    int64_t own = tiles.matrix(tile) * parts + part, present = ranks[own];
    int64_t last = std::min(first + RANKS, rank), count = std::max<int64_t>(std::min(last, present) - first, 0);
    const Value* rows[TILE_ROWS];
    int height = tiles.height(tile);
    for (int m = 0; m < height; ++m) rows[m] = input + tiles.of(tile)[m] * stride;
    float* to = sums + (tile * TILE_ROWS * parts + part) * rank + first;
    shrink(rows, height, weights + (own * rank + first) * size, count, size, to, parts * rank);
    for (int m = 0; m < height; ++m) std::fill(to + m * parts * rank + count, to + m * parts * rank + last - first, 0.0f);
  });
}

template <class Value, class Weight>
void expand_tiles(const float* sums, const Weight* weights, const int32_t* ranks, const int64_t* starts, int64_t parts,
                  int64_t rank, const Tiles& tiles, Value* output, int64_t stride) {
  int64_t outputs = starts[parts], pieces = 0;
  for (int64_t part = 0; part < parts; ++part) pieces += (starts[part + 1] - starts[part] + OUTPUTS - 1) / OUTPUTS;
  parallel_for(tiles.count * pieces, tiles.count * rank * outputs > WORTH_A_THREAD, [&](int64_t task) {
    int64_t tile = task / pieces, piece = task % pieces, part = 0;
    if (tiles.groups[tile] < 0) return;
    for (;; ++part) {
      int64_t own = (starts[part + 1] - starts[part] + OUTPUTS - 1) / OUTPUTS;
      if (piece < own) break;
      piece -= own;
    }
    int64_t matrix = tiles.matrix(tile), present = ranks[matrix * parts + part];
    if (present == 0) return;
    int64_t first = starts[part] + piece * OUTPUTS, last = std::min(first + OUTPUTS, starts[part + 1]);
    Value* rows[TILE_ROWS];
    int height = tiles.height(tile);
    for (int m = 0; m < height; ++m) rows[m] = output + tiles.of(tile)[m] * stride + first;
    expand(sums + (tile * TILE_ROWS * parts + part) * rank, parts * rank, present,
           weights + matrix * rank * outputs + first, outputs, rows, height, last - first);
  });
}

}  // namespace

extern "C" {

void quire_shrink(int type, int weight_type, const void* input, int64_t stride, const void* weights,
                  const int32_t* ranks, int64_t parts, int64_t rank, int64_t size, const int32_t* rows,
                  const int32_t* groups, int64_t tiles, int64_t sharing, float* sums) {
  with_type(type, [=](auto value) {
    with_type(weight_type, [=](auto weight) {
      shrink_tiles((const decltype(value)*)input, stride, (const decltype(weight)*)weights, ranks, parts, rank, size,
                   Tiles{rows, groups, tiles, sharing}, sums);
    });
  });
}

void quire_expand(int type, int weight_type, const float* sums, const void* weights, const int32_t* ranks,
                  const int64_t* starts, int64_t parts, int64_t rank, const int32_t* rows, const int32_t* groups,
                  int64_t tiles, int64_t sharing, void* output, int64_t stride) {
  with_type(type, [=](auto value) {
    with_type(weight_type, [=](auto weight) {
      expand_tiles(sums, (const decltype(weight)*)weights, ranks, starts, parts, rank,
                   Tiles{rows, groups, tiles, sharing}, (decltype(value)*)output, stride);
    });
  });
}
}

RECORDABLE(shrink)
RECORDABLE(expand)
