// The state of a sequence's head, and how its tokens go through it.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "states.h"

namespace quire {

constexpr int WIDE = 4;                    // vectors processed side by side
constexpr int64_t COLUMNS = WIDE * LANES;  // in a tile
constexpr int64_t AT_ONCE = 8;             // tokens that go through one tile after the other

// COLUMNS columns of the state of a sequence's head, each row `stride` values after the one before: read in one place and
// written to another, or the same. `Stored` is the type in which the state is kept, whose precision the values have.
template <class Held, class Stored>
struct Tile {
  const Held* from;
  Held* to;
  int64_t stride, rows;

  // The sums of the rows times `read` [rows]: output [COLUMNS].
  [[gnu::noinline]] void sum_up(const float* read, float* output) const {
    Floats total[WIDE];
    for (Floats& each : total) each = zero();
    for (int64_t row = 0; row < rows; ++row) {
      Floats by = all(read[row]);
      for (int v = 0; v < WIDE; ++v) total[v] = fma(load(from + row * stride + v * LANES), by, total[v]);
    }
    for (int v = 0; v < WIDE; ++v) store(output + v * LANES, total[v]);
  }

  // Multiplies each row by its decay (one for all unless HAS_DECAYS), adds `added` [COLUMNS] times `write` [rows], and
  // sums up the rows times `read` [rows]: output [COLUMNS]. If not null, `next` becomes what sum_up then makes of `ahead`.
  template <bool HAS_DECAYS>
  [[gnu::noinline]] void advance(const float* decays, const float* added, const float* write, const float* read,
                                 float* output, const float* ahead, float* next) const {
    if (next) pass<HAS_DECAYS, true>(decays, added, write, read, output, ahead, next);
    else pass<HAS_DECAYS, false>(decays, added, write, read, output, ahead, next);
  }

  template <bool HAS_DECAYS, bool HAS_NEXT>
  void pass(const float* decays, const float* added, const float* write, const float* read, float* output,
            const float* ahead, float* next) const {
    Floats add[WIDE], total[WIDE], then[WIDE], decay = all(decays[0]);
    for (int v = 0; v < WIDE; ++v) add[v] = load(added + v * LANES), total[v] = then[v] = zero();
    for (int64_t row = 0; row < rows; ++row) {
      if (HAS_DECAYS) decay = all(decays[row]);
      Floats by = all(write[row]), reading = all(read[row]), looking = HAS_NEXT ? all(ahead[row]) : zero();
      for (int v = 0; v < WIDE; ++v) {
        int64_t at = row * stride + v * LANES;
        Floats now = fma(add[v], by, load(from + at) * decay);
        total[v] = fma(now, reading, total[v]);
        now = rounded<Stored>(now);
        store(to + at, now);
        if (HAS_NEXT) then[v] = fma(now, looking, then[v]);
      }
    }
    for (int v = 0; v < WIDE; ++v) store(output + v * LANES, total[v]);
    for (int v = 0; HAS_NEXT && v < WIDE; ++v) store(next + v * LANES, then[v]);
  }
};

// A copy of the state [rows, dim] of a sequence's head for several tokens, as tiles that each fit a core's nearest cache.
template <class Stored>
class Tiles {
 public:
  Tiles(int64_t rows, int64_t dim)
      : rows(rows), dim(dim), count((dim + COLUMNS - 1) / COLUMNS), values(new float[count * rows * COLUMNS]) {}

  // Takes a state; null means zeros.
  void take(const Stored* state) {
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t at = 0; at < count * COLUMNS; at += LANES)
        store(place(row, at), state && at < dim ? load(state + row * dim + at, dim - at) : zero());
  }

  void put(Stored* state) const {
    for (int64_t row = 0; row < rows; ++row) put_row(state, row, 0, dim);
  }

  void put_tile(Stored* state, int64_t tile) const {
    for (int64_t row = 0; row < rows; ++row) put_row(state, row, tile * COLUMNS, std::min(dim, (tile + 1) * COLUMNS));
  }

  Tile<float, Stored> tile(int64_t index) const {
    float* at = place(0, index * COLUMNS);
    return {at, at, COLUMNS, rows};
  }

  const int64_t rows, dim, count;  // of tiles

 private:
  float* place(int64_t row, int64_t column) const {
    return values.get() + (column / COLUMNS * rows + row) * COLUMNS + column % COLUMNS;
  }

  void put_row(Stored* state, int64_t row, int64_t first, int64_t end) const {
    for (int64_t at = first; at < end; at += LANES) store(state + row * dim + at, load(place(row, at)), end - at);
  }

  std::unique_ptr<float[]> values;  // [tiles, rows, COLUMNS], zeros past the last column
};

// The tokens of one sequence's head that go through a tile together: what each writes, reads and so on.
struct Vectors {
  int64_t size;
  std::vector<float> values;  // [AT_ONCE, size]

  explicit Vectors(int64_t size) : size(size), values(AT_ONCE * size) {}
  float* of(int64_t token) { return &values[token * size]; }
};

// Goes through the tokens of a sequence's head, AT_ONCE at a time: calls prepare(token, place) for these, and then, for
// one tile after the other, work(tile, its first column, token, place, number of places) for each.
template <class Stored, class Prepare, class Work>
void for_tiles(const States<Stored>& states, int64_t tokens, int64_t rows, int64_t dim, const Prepare& prepare,
               const Work& work) {
  Stored* end = tokens ? states.after(tokens - 1, tokens) : nullptr;
  if (!end) return;
  if (tokens == 1 && !states.is_fresh && dim % COLUMNS == 0) {
    prepare(0, 0);
    for (int64_t first = 0; first < dim; first += COLUMNS)
      work(Tile<Stored, Stored>{states.own + first, end + first, dim, rows}, first, 0, 0, 1);
    return;
  }
  Tiles<Stored> tiles(rows, dim);
  tiles.take(states.is_fresh ? nullptr : states.own);
  for (int64_t begin = 0; begin < tokens; begin += AT_ONCE) {
    int64_t places = std::min(AT_ONCE, tokens - begin);
    for (int64_t place = 0; place < places; ++place) prepare(begin + place, place);
    for (int64_t tile = 0; tile < tiles.count; ++tile)
      for (int64_t place = 0; place < places; ++place) {
        int64_t token = begin + place;
        work(tiles.tile(tile), tile * COLUMNS, token, place, places);
        Stored* to = token < tokens - 1 ? states.after(token, tokens) : nullptr;
        if (to) tiles.put_tile(to, tile);
      }
  }
  tiles.put(end);
}

}  // namespace quire
