// Attention of some rows over the paged cache, computed in the same way for prompts and for single tokens. Keys are visited
// in chunks that begin at multiples of their size, with an online softmax (Milakov and Gimelshein 2018; Dao et al. 2022).
// Each partition of PARTITION positions has its own softmax, and partitions are merged in order. So a row's result depends
// neither on the rows beside it nor on which threads compute its partitions. Positions of a chunk that a row does not see
// get a weight of zero; a chunk of which it sees nothing does not change its state.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "eight_bits.h"
#include "paged.h"
#include "products.h"

namespace quire {

constexpr int64_t LEAST_CHUNK = 64, MOST_CHUNK = SEGMENTS * UNIT;
// Bytes of a chunk's keys, which are read again for every few rows. With matrix registers a chunk is larger, as they take
// more rows at a time and run as fast if the keys come from the second-level cache.
template <class Type>
constexpr int64_t CHUNK_BYTES = (Type::TILES ? 64 : 16) << 10;
constexpr int64_t PARTITION = 1024;        // a multiple of each chunk
constexpr int64_t MOST_ROWS_DIM = 1 << 15;  // rows * dim of a task: queries and sums stay in the second-level cache
constexpr int64_t MOST_TASK_ROWS = 256;
constexpr int64_t HEADS_BYTES = 256 << 10;  // a chunk of all of a task's heads: it and the next one stay there too
constexpr float LOG2_E = 1.44269504f;
constexpr float LANE_NUMBERS[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// The number of positions of a chunk; depends on the head size alone.
template <class Stored>
inline int64_t chunk_of(int64_t dim) {
  int64_t chunk = MOST_CHUNK;
  while (chunk > LEAST_CHUNK && chunk * dim * int64_t(sizeof(Stored)) > CHUNK_BYTES<Groups<Stored>>) chunk /= 2;
  return chunk;
}

struct Range {
  int64_t begin, end;

  Range within(int64_t first, int64_t last) const { return {std::max(begin, first), std::min(end, last)}; }
  bool empty() const { return begin >= end; }
  int64_t count() const { return end - begin; }
};

// Options that all rows of a layer share.
struct Options {
  float scale, softcap;  // softcap 0: none
  int64_t window;        // 0: none
  bool chunked;          // the window begins at its last multiple
  bool bidirectional;    // queries also see later positions, as far as the window reaches back
  int64_t part, parts;   // the cache holds positions part, part + parts, part + 2 * parts... one after the other
  int cached;            // the format of a cache of EightBits, see eight_bits.h

  // How many positions below `end` the cache holds: the place in the cache of the first position from `end` on.
  int64_t held(int64_t end) const { return parts == 1 ? end : (end + parts - 1 - part) / parts; }

  // The first position that a query at this position sees.
  int64_t first_seen(int64_t position) const {
    if (chunked) return position - uint32_t(position) % uint32_t(window);
    return window ? std::max<int64_t>(0, position + 1 - window) : 0;
  }

  // The end (exclusive) of the positions that it sees, in a sequence of this length.
  int64_t seen_until(int64_t position, int64_t length) const {
    if (!bidirectional) return position + 1;
    return window ? std::min(length, position + window) : length;
  }
};

// Rows of one sequence, the same for each of some key-value heads. A row is one of the sequence's new queries with one of
// the head's query heads; the query heads of a query are neighbors.
struct Rows {
  int64_t position;     // of the sequence's first new query
  int64_t group;        // query heads of a key-value head
  int64_t heads;        // key-value heads
  int64_t first, last;  // range of rows of each head
  int64_t length;       // of the sequence
  const float* slopes;  // of the query heads, see bend; null: none

  int64_t count() const { return last - first; }
  int64_t of_all_heads() const { return heads * count(); }
  int64_t at(int64_t row) const { return position + uint32_t(first + row) / uint32_t(group); }
  // What a row sees, as places in the cache: these are positions unless the cache holds only a part of them.
  Range seen(int64_t row, const Options& options) const {
    return {options.held(options.first_seen(at(row))), options.held(options.seen_until(at(row), length))};
  }
  // What rows [begin, end) see together.
  Range seen(int64_t begin, int64_t end, const Options& options) const {
    return {seen(begin, options).begin, seen(end - 1, options).end};
  }
};

// The rows' online softmax so far: the greatest score, the sum of weights by lane, and the weighted sum of values. Takes
// size(rows, dim) floats of memory.
struct State {
  float *total, *output, *most;
  int64_t rows, dim;

  State(float* at, int64_t rows, int64_t dim)
      : total(at), output(at + rows * LANES), most(output + rows * dim), rows(rows), dim(dim) {}
  static constexpr int64_t size(int64_t rows, int64_t dim) { return rows * (LANES + dim + 1); }

  // The state of the rows from `row` on.
  State from(int64_t row) const {
    State other = *this;
    other.total += row * LANES, other.output += row * dim, other.most += row, other.rows -= row;
    return other;
  }

  void clear() {
    clear_all_but_output();
    clear_output(0, rows);
  }
  void clear_all_but_output() {
    std::fill_n(total, rows * LANES, 0.0f);
    std::fill_n(most, rows, -std::numeric_limits<float>::infinity());
  }
  void clear_output(int64_t first, int64_t last) { std::fill_n(output + first * dim, (last - first) * dim, 0.0f); }

  void scale(int64_t row, Floats factor) {
    store(total + row * LANES, load(total + row * LANES) * factor);
    for (float *at = output + row * dim, *end = at + dim; at < end; at += LANES) store(at, load(at) * factor);
  }

  // Copies another row's state.
  void take(int64_t row, const State& other, int64_t other_row) {
    std::copy_n(other.total + other_row * LANES, LANES, total + row * LANES);
    std::copy_n(other.output + other_row * dim, dim, output + row * dim);
    most[row] = other.most[other_row];
  }

  // Merges the row's state of the next partition.
  void merge(int64_t row, const State& next) {
    float greatest = std::max(most[row], next.most[row]);
    Floats before = all(std::exp(most[row] - greatest)), after = all(std::exp(next.most[row] - greatest));
    auto add = [=](float* to, const float* from) { store(to, fma(load(from), after, load(to) * before)); };
    add(total + row * LANES, next.total + row * LANES);
    for (int64_t i = row * dim; i < (row + 1) * dim; i += LANES) add(output + i, next.output + i);
    most[row] = greatest;
  }
};

// A thread's memory for one task.
struct Scratch {
  static constexpr int64_t STATE = MOST_ROWS_DIM + MOST_TASK_ROWS * (LANES + 1);
  alignas(64) float query[MOST_ROWS_DIM];
  alignas(64) float part[STATE];
  alignas(64) float whole[STATE];
  alignas(64) float scores[TILE_ROWS * MOST_CHUNK];
  alignas(64) float weights[TILE_ROWS * MOST_CHUNK];
  alignas(64) float clean[2][UNIT * MOST_DIM];
  alignas(64) float turning[UNIT * MOST_DIM];
  alignas(64) float keys[LEAST_CHUNK * MOST_DIM];
  alignas(64) float values[LEAST_CHUNK * MOST_DIM];  // converted from an 8-bit cache
  Wanted wanted;
};

inline Scratch& scratch() {
  static thread_local Scratch own;
  return own;
}

// softcap * tanh(scores / softcap)
inline Floats cap_scores(Floats scores, float softcap) {
  Floats power = exponential(all(2.0f) * scores / all(softcap));
  return all(softcap) * (all(1.0f) - all(2.0f) / (power + all(1.0f)));
}

// A chunk of some heads' cache, and the positions of the cache that are seen.
template <class Stored, class Cached>
struct Place {
  Paged<Stored, Cached> cache;  // the first head's
  int64_t heads;
  Range seen;
  int64_t start;

  // The chunk's units that are at least partly seen.
  Range units() const {
    Range some = seen.within(start, start + chunk_of<Stored>(cache.dim));
    return {(some.begin - start) / UNIT, (some.end - start + UNIT - 1) / UNIT};
  }

  // The heads of a block are contiguous. In this order the hardware prefetcher continues from one head to the next, which
  // it would not in the order of computing, head by head.
  void want(Wanted& wanted, int64_t pace) const {
    wanted.begin(pace);
    auto [first, last] = units();
    for (int64_t at = start + first * UNIT; at < start + last * UNIT; at += UNIT) {
      if (cache.keys)
        want_heads(wanted, cache.keys_at(at), cache.step() * sizeof(Cached), cache.dim / cache.GROUP);
      want_heads(wanted, cache.values_at(at), 64, UNIT * cache.dim * sizeof(Cached) / 64);
    }
  }

 private:
  // `count` lines of each head; a single run if the heads' lines are contiguous.
  void want_heads(Wanted& wanted, const Cached* lines, int64_t stride, int64_t count) const {
    int64_t runs = cache.head_stride * int64_t(sizeof(Cached)) == stride * count ? 1 : heads;
    for (int64_t i = 0; i < runs; ++i) wanted.add(lines + i * cache.head_stride, stride, count * heads / runs);
  }
};

// Computes rows against the cache; `Type` is the kind of groups of its type.
template <class Type, class Cached>
class Attention {
 public:
  using Stored = typename Type::Stored;
  using Input = typename Type::Input;

  // query [heads, rows, dim]
  Attention(const Rows& rows, const Options& options, const Paged<Stored, Cached>& cache, const Input* query)
      : rows(rows), options(options), cache(cache), queries(query), seen(rows.seen(0, rows.count(), options)) {}

  // Computes the rows' state for positions [begin, end); it already includes the positions below `from`. All three are
  // multiples of a chunk. `after` is what this thread computes with next (null: unknown), for prefetching.
  void attend(int64_t begin, int64_t from, int64_t end, State& state, const Place<Stored, Cached>* after) {
    Range range = seen.within(from, end);
    if (from == begin) clear(begin, end, state);
    for (int64_t start = range.begin / chunk_size * chunk_size; start < range.end; start += chunk_size) {
      Place<Stored, Cached> here{cache, rows.heads, seen, start}, next{cache, rows.heads, seen, start + chunk_size};
      if (next.start < range.end) after_this(here, next);
      else if (after) after_this(here, *after);
      Places places = find(here);
      for (int64_t head = 0; head < rows.heads; ++head) attend_head(take(here, places, head), begin, state);
    }
#ifdef __AMX_TILE__
    if (Type::TILES) _tile_release();
    shaped = 0;
#endif
  }

 private:
  using Wide = typename Type::Wide;

  static constexpr bool NARROW = !std::is_same_v<Stored, Cached>;

  // Pointers to the units of a head's chunk of positions from `start` on; undefined for units that the task does not see.
  struct Chunk {
    int64_t start, head;
    const Stored *keys[SEGMENTS], *values[SEGMENTS];
  };

  // Rows [first, last) of a head, and the units [begin, end) of its chunk of which they see something.
  struct Tile {
    const Chunk* chunk;
    int64_t first, last;
    int begin, end;
    bool fresh;  // the rows have seen nothing before

    int64_t count() const { return last - first; }
  };

  const Rows& rows;
  const Options& options;
  const Paged<Stored, Cached>& cache;
  const Input* queries;
  Range seen;
  int64_t chunk_size = chunk_of<Stored>(cache.dim);
  int64_t tiles = (rows.count() + most_rows<Type>() - 1) / most_rows<Type>();  // per head
  Scratch& memory = scratch();
  int64_t shaped = 0;

  // The first row of a head's i-th tile, and what the tile sees.
  int64_t row_of(int64_t i) const { return i * rows.count() / tiles; }
  int64_t row_of(int64_t head, int64_t i) const { return head * rows.count() + row_of(i); }
  Range seen_by(int64_t i) const { return rows.seen(row_of(i), row_of(i + 1), options); }

  // The first values of a row overwrite its output, so only the outputs of rows that see none are set to zero.
  void clear(int64_t begin, int64_t end, State& state) const {
    state.clear_all_but_output();
    for (int64_t head = 0; head < rows.heads; ++head)
      for (int64_t i = 0; i < tiles; ++i)
        if (seen_by(i).within(begin, end).empty()) state.clear_output(row_of(head, i), row_of(head, i + 1));
  }

  void after_this(const Place<Stored, Cached>& here, const Place<Stored, Cached>& next) {
    int64_t units = here.units().count() * here.heads;
    next.want(memory.wanted, (next.units().count() * next.heads + units - 1) / units);
  }

  // A head's rows against a chunk. A tile's values are added only after the next tile's scores are computed. Otherwise,
  // matrix registers would wait for the weights, and these for the scores.
  void attend_head(const Chunk& chunk, int64_t begin, State& state) {
    Tile before{};
    for (int64_t i = 0; i < tiles; ++i) {
      Range all = seen_by(i), any = all.within(chunk.start, chunk.start + chunk_size);
      if (any.empty()) continue;
      Tile tile{&chunk, row_of(i), row_of(i + 1), int(any.begin - chunk.start) / UNIT,
                int(any.end - chunk.start + UNIT - 1) / UNIT, all.within(begin, chunk.start).empty()};
      score(tile);
      if (before.chunk) add_values(before, state);
      soften(tile, state);
      before = tile;
    }
    if (before.chunk) add_values(before, state);
  }

  // Offsets of a chunk's units from a head's first key and value.
  struct Places {
    int64_t keys[SEGMENTS], values[SEGMENTS];
  };

  Places find(const Place<Stored, Cached>& place) const {
    Places places;
    auto [first, last] = place.units();
    for (int64_t unit = first; unit < last; ++unit) {
      int64_t at = place.start + unit * UNIT;
      places.keys[unit] = place.cache.key_place(at), places.values[unit] = place.cache.value_place(at);
    }
    return places;
  }

  // A head's chunk, converted to the type that is multiplied if the cache has 8 bits.
  Chunk take(const Place<Stored, Cached>& place, const Places& places, int64_t head) {
    Paged<Stored, Cached> cache = place.cache.head(head);
    Chunk chunk;
    chunk.start = place.start, chunk.head = head;
    auto [first, last] = place.units();
    for (int64_t unit = first; unit < last; ++unit) {
      const Cached* keys_there = cache.keys ? cache.keys + places.keys[unit] : nullptr;
      const Cached* values_there = cache.values + places.values[unit];
      if constexpr (!NARROW) {
        chunk.keys[unit] = keys_there, chunk.values[unit] = values_there;
      } else {
        auto* values = (Stored*)memory.values + unit * UNIT * cache.dim;
        widen_all(options.cached, values_there, UNIT * cache.dim, values);
        chunk.values[unit] = values;
        if (!cache.keys) continue;
        auto* keys = (Stored*)memory.keys + unit * UNIT * cache.dim;
        for (int64_t i = 0; i < cache.dim / Type::GROUP; ++i)
          widen_all(options.cached, keys_there + i * cache.step(), UNIT * Type::GROUP, keys + i * UNIT * Type::GROUP);
        chunk.keys[unit] = keys;
      }
    }
    make_ready(chunk);
    return chunk;
  }

  // Clears unseen values in units that are only partly seen, and rearranges values as keys if they are both.
  void make_ready(Chunk& chunk) {
    for (int unit = 0; unit * UNIT < chunk_size; ++unit) {
      int64_t at = chunk.start + unit * UNIT;
      Range known = seen.within(at, at + UNIT);
      if (known.empty()) continue;
      if (known.end - known.begin < UNIT) {
        auto* clean = (Stored*)memory.clean[known.begin > at];
        clean_values(chunk.values[unit], cache.dim, known.begin - at, known.end - at, clean);
        chunk.values[unit] = clean;
      }
      if (!cache.keys)
        turn_to_keys<Type>(chunk.values[unit], cache.dim, (Input*)memory.turning, turned(unit));
    }
  }

  Input* turned(int unit) { return (Input*)memory.keys + unit * UNIT * cache.dim; }

  void shape(const Tile& tile) {
#ifdef __AMX_TILE__
    if (Type::TILES && shaped != tile.count()) shape_tiles(shaped = tile.count());
#endif
  }

  void score(const Tile& tile) {
    shape(tile);
    if (cache.keys) return score<Type>(tile, tile.chunk->keys, NARROW ? UNIT * Type::GROUP : cache.step());
    const Input* keys[SEGMENTS];
    for (int unit = tile.begin; unit < tile.end; ++unit) keys[unit] = turned(unit);
    score<Wide>(tile, keys, UNIT * Wide::GROUP);
  }

  // Computes the tile's scores against its units, whose steps are `stride` values apart.
  template <class Keys>
  void score(const Tile& tile, const typename Keys::Stored* const* keys, int64_t stride) {
    Product<Keys> product;
    product.input = queries + (tile.chunk->head * rows.count() + tile.first) * cache.dim;
    product.input_stride = cache.dim;
    product.segments = 1, product.steps[0] = cache.dim / Keys::GROUP, product.stride = stride;
    product.output_stride = MOST_CHUNK, product.fresh = true, product.wanted = &memory.wanted;
    for (int at = tile.begin * UNIT, count; at < tile.end * UNIT; at += count * LANES) {
      count = most_vectors<Keys>(tile.count(), (tile.end * UNIT - at) / LANES);
      for (int v = 0; v < count; ++v) {
        int unit = (at + v * LANES) / UNIT, within = (at + v * LANES) % UNIT;
        product.from[0][v] = keys[unit] + within * Keys::GROUP;
      }
      product.output = memory.scores + at;
      multiply(product, tile.count(), count);
    }
  }

  // Turns the tile's scores into weights, and scales the rows' earlier sums to their new maxima. All maxima are found
  // first, as otherwise each row's weights would wait for its maximum.
  void soften(const Tile& tile, const State& of_heads) {
    State state = of_heads.from(tile.chunk->head * rows.count());
    int64_t start = tile.chunk->start, begin = tile.begin * UNIT, end = tile.end * UNIT;
    Range own[TILE_ROWS];
    float highest[TILE_ROWS];
    bool bends = options.softcap > 0 || rows.slopes;
    float unit = bends ? 1.0f : options.scale;
    for (int64_t i = 0; i < tile.count(); ++i) {
      own[i] = rows.seen(tile.first + i, options).within(start, start + chunk_size);
      own[i] = own[i].empty() ? Range{end, end} : Range{own[i].begin - start, own[i].end - start};
      if (own[i].empty()) continue;
      float* scores = memory.scores + i * MOST_CHUNK;
      Range vectors = whole_vectors(own[i]);
      if (bends) bend(tile, scores, tile.first + i, vectors);
      highest[i] = unit * greatest(scores, own[i], vectors);
    }
    for (int64_t i = 0; i < tile.count(); ++i) {
      const float* scores = memory.scores + i * MOST_CHUNK;
      auto* weights = (Input*)memory.weights + i * MOST_CHUNK;
      auto [first, last] = whole_vectors(own[i]);
      for (int64_t at = begin; at < first; at += LANES) store(weights + at, zero());
      for (int64_t at = last; at < end; at += LANES) store(weights + at, zero());
      if (own[i].empty()) continue;
      int64_t row = tile.first + i;
      // A power of two takes fewer instructions than a power of e.
      Floats factor = all(unit * LOG2_E), least = all(-raise(highest[i], row, state) * LOG2_E);
      Floats total = load(state.total + row * LANES);
      for (int64_t at = first; at < last; at += LANES) {
        Floats weight = power_of_two(fma(load(scores + at), factor, least));
        if (at < own[i].begin || at + LANES > own[i].end)
          weight = select(between(own[i].begin - at, own[i].end - at), weight, zero());
        total = total + weight;
        store(weights + at, weight);
      }
      store(state.total + row * LANES, total);
    }
  }

  static Range whole_vectors(Range places) {
    return {places.begin / LANES * LANES, (places.end + LANES - 1) / LANES * LANES};
  }

  // Changes a row's scores in a range of the chunk: scales and caps them, and subtracts the head's slope for each position
  // between query and key (ALiBi, Press et al. 2021).
  void bend(const Tile& tile, float* scores, int64_t row, Range places) {
    Floats scale = all(options.scale), slope = zero(), steps = zero();
    if (rows.slopes) {
      slope = all(rows.slopes[tile.chunk->head * rows.group + (rows.first + row) % rows.group]);
      steps = load(LANE_NUMBERS) * all(float(options.parts));
    }
    for (int64_t i = places.begin; i < places.end; i += LANES) {
      Floats score = load(scores + i) * scale;
      if (options.softcap > 0) score = cap_scores(score, options.softcap);
      if (rows.slopes) {
        int64_t position = (tile.chunk->start + i) * options.parts + options.part;
        score = minus_product(slope, magnitude(all(float(rows.at(row) - position)) - steps), score);
      }
      store(scores + i, score);
    }
  }

  // The greatest of the scores that the row sees.
  static float greatest(const float* scores, Range own, Range places) {
    Floats lowest = all(-std::numeric_limits<float>::infinity()), highest = lowest;
    for (int64_t i = places.begin; i < places.end; i += LANES) {
      Floats score = load(scores + i);
      if (i < own.begin || i + LANES > own.end) score = select(between(own.begin - i, own.end - i), score, lowest);
      highest = most(highest, score);
    }
    return quire::greatest(highest);
  }

  // Updates a row's greatest score with another score, and returns it.
  float raise(float score, int64_t row, State& state) {
    float before = state.most[row];
    if (!(score > before)) return before;
    if (before > -std::numeric_limits<float>::infinity()) state.scale(row, all(std::exp(before - score)));
    return state.most[row] = score;
  }

  // Adds the values of the tile's units, times its weights.
  void add_values(const Tile& tile, State& state) {
    const auto* values = tile.chunk->values;
    shape(tile);
    Product<Type> product;
    product.input = (Input*)memory.weights + tile.begin * UNIT, product.input_stride = MOST_CHUNK;
    product.segments = 0, product.stride = cache.dim * Type::GROUP;
    product.output_stride = cache.dim, product.fresh = tile.fresh, product.wanted = &memory.wanted;
    int starts[SEGMENTS];  // units that are not contiguous with the previous one
    for (int unit = tile.begin; unit < tile.end; ++unit) {
      // A matrix register instruction adds up its own products before it adds them to the sum. Which products these are must
      // not depend on where blocks are in memory, nor on which unit is the first.
      bool follows = !Type::TILES && unit > tile.begin && values[unit] == values[unit - 1] + UNIT * cache.dim;
      if (!follows) product.steps[product.segments] = 0, starts[product.segments++] = unit;
      product.steps[product.segments - 1] += UNIT / Type::GROUP;
    }
    float* output = state.output + (tile.chunk->head * rows.count() + tile.first) * cache.dim;
    for (int64_t at = 0, count; at < cache.dim; at += count * LANES) {
      count = most_vectors<Type>(tile.count(), (cache.dim - at) / LANES);
      for (int i = 0; i < product.segments; ++i)
        for (int v = 0; v < count; ++v) product.from[i][v] = values[starts[i]] + (at + v * LANES) * Type::GROUP;
      product.output = output + at;
      multiply(product, tile.count(), count);
    }
  }
};

}  // namespace quire
