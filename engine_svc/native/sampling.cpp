// Samples tokens from logits: the likeliest, or one drawn by temperature, min-p, top-k and top-p; and computes tokens'
// log-probabilities. Defined by engine_svc/sampling/truncation.py and logprobs.py.
//
// A row is read once, in pieces. For each piece, the greatest logits and the sum of weights are kept, and combined in the
// order of pieces, whichever threads computed them. With truncation, only tokens that may be kept are considered: a piece
// has 16 columns, and the n-th greatest of all columns' maxima is not above the n-th greatest logit, so it is a safe lower
// bound. All levels use the same columns, so that they draw the same tokens.
#include <cfloat>
#include <limits>

#include "candidates.h"
#include "noise.h"
#include "parallel.h"

using namespace quire;

namespace {

constexpr int64_t COLUMNS = 16, REGISTERS = COLUMNS / LANES;
constexpr int64_t PIECE = 64 * COLUMNS;  // logits
constexpr int64_t SPAN = 16;             // pieces per thread at a time
constexpr int64_t TOGETHER = 64;         // tokens whose random numbers are computed together
constexpr int64_t FIRST_LOOK = 64;       // columns whose greatest logits bound the first attempt for top-p
constexpr double ROUNDING = 0x1p-17;  // greatest relative error of a mass: two float32 sums, 64 at a time
constexpr float NEVER = -std::numeric_limits<float>::infinity();

// Sampling parameters, one for each slot, as laid out by engine_svc/sampling/native.py.
struct Wanted {
  uint64_t seed;
  double temperature;  // 0 takes the likeliest token
  double top_p, min_p;
  int64_t top_k;  // 0 keeps all tokens
};

struct Piece {
  float columns[COLUMNS];  // the greatest logit of each
  float greatest;
  bool has_numbers_only;
  double mass;  // sum of exp((logit - greatest) / temperature)
};

struct Row {
  const float* logits;
  int64_t size;
  float inverse_temperature;
  bool weighs;  // the mass of the whole row is needed
  std::vector<Piece> pieces;
  int64_t first_token = 0;  // token of the first logit, if these are only a part of a row
  float greatest;
  float above;  // the greatest logit of the whole row, to which weights are relative
  bool has_numbers_only;
  bool is_broken;  // has infinite logits or NaN

  Row(const float* logits, int64_t size, float temperature, bool weighs)
      : logits(logits), size(size), inverse_temperature(1.0f / temperature), weighs(weighs),
        pieces((size + PIECE - 1) / PIECE) {}

  // PIECE logits; past the row's end, values that are never drawn.
  const float* piece(int64_t index, float* room) const {
    int64_t count = std::min(PIECE, size - index * PIECE);
    if (count == PIECE) return logits + index * PIECE;
    std::fill(std::copy_n(logits + index * PIECE, count, room), room + PIECE, NEVER);
    return room;
  }

  void survey(int64_t index) {
    alignas(64) float room[PIECE];
    const float* from = piece(index, room);
    Floats most_of[REGISTERS];
    for (auto& each : most_of) each = all(NEVER);
    uint32_t numbers = ~0u;
    for (int64_t i = 0; i < PIECE; i += COLUMNS)
      for (int r = 0; r < REGISTERS; ++r) {
        Floats values = load(from + i + r * LANES);
        numbers &= bits(at_least(values, values));
        most_of[r] = most(most_of[r], values);
      }
    Piece& found = pieces[index];
    for (int r = 0; r < REGISTERS; ++r) store(found.columns + r * LANES, most_of[r]);
    found.greatest = *std::max_element(found.columns, found.columns + COLUMNS);
    found.has_numbers_only = numbers == bits(first(LANES));
    found.mass = weighs ? mass(from, found.greatest) : 0;
  }

  double mass(const float* from, float above) const {
    Floats sums[REGISTERS];
    for (auto& each : sums) each = zero();
    for (int64_t i = 0; i < PIECE; i += COLUMNS)
      for (int r = 0; r < REGISTERS; ++r)
        sums[r] = sums[r] + weights_of(load(from + i + r * LANES), above, inverse_temperature);
    float columns[COLUMNS];
    double found = 0;
    for (int r = 0; r < REGISTERS; ++r) store(columns + r * LANES, sums[r]);
    for (float column : columns) found += column;
    return found;
  }

  // Combines the pieces; their masses become sums of exp((logit - the row's greatest) / temperature).
  void merge() {
    greatest = NEVER;
    has_numbers_only = true;
    for (const Piece& each : pieces)
      greatest = std::max(greatest, each.greatest), has_numbers_only &= each.has_numbers_only;
    above = greatest;
    is_broken = !has_numbers_only || !std::isfinite(greatest);
    if (weighs && !is_broken)
      for (Piece& each : pieces) each.mass *= std::exp(double(each.greatest - greatest) * inverse_temperature);
  }

  double mass() const {
    double found = 0;
    for (const Piece& each : pieces) found += each.mass;
    return found;
  }

  // The first token with the greatest logit.
  int64_t likeliest() const {
    int64_t index = 0;
    while (pieces[index].greatest < greatest) ++index;
    return std::find(logits + index * PIECE, logits + size, greatest) - logits;
  }

  // A logit that at least `count` tokens reach or exceed.
  float least_of(int64_t count) const {
    if (count > int64_t(pieces.size()) * COLUMNS) return NEVER;
    std::vector<float> columns;
    columns.reserve(pieces.size() * COLUMNS);
    for (const Piece& each : pieces) columns.insert(columns.end(), each.columns, each.columns + COLUMNS);
    std::nth_element(columns.begin(), columns.begin() + count - 1, columns.end(), std::greater<float>());
    return columns[count - 1];
  }

  // Gathers the tokens with a logit of `least` or above.
  void gather(float least, Candidates& into) const {
    alignas(64) float room[PIECE];
    into.clear();
    for (int64_t index = 0; index < int64_t(pieces.size()); ++index) {
      if (pieces[index].greatest < least) continue;
      const float* from = piece(index, room);
      for (int64_t i = 0; i < PIECE; i += LANES)
        for (uint32_t found = bits(at_least(load(from + i), all(least))); found; found &= found - 1) {
          int64_t at = i + __builtin_ctz(found);
          if (index * PIECE + at < size) into.add(index * PIECE + at, from[at]);
        }
    }
    into.weigh(above, inverse_temperature);
  }

  int64_t count_above(float logit) const {
    alignas(64) float room[PIECE];
    Floats next = all(std::nextafter(logit, FLT_MAX));
    int64_t found = 0;
    for (int64_t index = 0; index < int64_t(pieces.size()); ++index) {
      if (!(pieces[index].greatest > logit)) continue;
      const float* from = piece(index, room);
      for (int64_t i = 0; i < PIECE; i += LANES) found += __builtin_popcount(bits(at_least(load(from + i), next)));
    }
    return found;
  }
};

// The exponential race: the token whose weight divided by its random number is greatest wins.
struct Race {
  Noise noise;
  double best = 0;
  int64_t token = -1;

  // A bound for random words: with a greater word, no token of this weight can win.
  uint32_t limit(double weight) const {
    return best > 0 ? uint32_t(std::min(weight / best * WORDS, WORDS - 1)) : UINT32_MAX;
  }

  void enter(int64_t candidate, double weight, uint32_t word) {
    double score = weight / exponential_of(word);
    if (score > best || (score == best && candidate < token)) best = score, token = candidate;
  }
};

void race_within(Race& race, const Row& row, int64_t index) {
  auto weight_of = [&](float logit) { return std::exp(double(logit - row.above) * row.inverse_temperature); };
  double most = weight_of(row.pieces[index].greatest);
  uint32_t limit = race.limit(most), words[TOGETHER];
  int64_t begin = index * PIECE, end = std::min(begin + PIECE, row.size);
  for (int64_t from = begin; from < end; from += TOGETHER) {
    uint32_t least = UINT32_MAX;
    for (int64_t i = 0; i < TOGETHER; ++i)
      least = std::min(least, words[i] = race.noise.word(uint32_t(row.first_token + from + i)));
    if (least > limit) continue;
    for (int64_t at = from; at < std::min(from + TOGETHER, end); ++at)
      if (words[at - from] <= limit) race.enter(at, weight_of(row.logits[at]), words[at - from]);
    limit = race.limit(most);
  }
}

// Draws from all tokens. Reads only the logits of tokens whose random numbers can win: few, once the piece of the likeliest
// token has raced.
Race draw_from_all(const Row& row, Noise noise) {
  Race race{noise};
  int64_t likeliest = row.likeliest() / PIECE;
  race_within(race, row, likeliest);
  for (int64_t index = 0; index < int64_t(row.pieces.size()); ++index)
    if (index != likeliest) race_within(race, row, index);
  return race;
}

Race draw_from(const Candidates& some, int64_t first, Noise noise) {
  Race race{noise};
  for (size_t i = 0; i < some.ids.size(); ++i) {
    uint32_t word = noise.word(uint32_t(first + some.ids[i]));
    if (word <= race.limit(some.weights[i])) race.enter(some.ids[i], some.weights[i], word);
  }
  return race;
}

void drop_unlikely(Candidates& some, const Wanted& wanted) {
  if (wanted.min_p > 0) some.keep_if([&](uint32_t, float weight) { return weight >= wanted.min_p; });
}

// Whether the mass of all tokens is needed: only for top-p alone.
bool weighs_all(const Wanted& wanted) { return wanted.top_p < 1 && wanted.top_k == 0 && wanted.min_p == 0; }

// Gathers the tokens that may be drawn, without those that min-p drops; for top-p alone, enough of the likeliest.
void gather_candidates(const Row& row, const Wanted& wanted, Candidates& some) {
  float floor = -FLT_MAX;
  if (wanted.min_p > 0) {
    float margin = 1e-5f * (1 + std::fabs(row.above));  // for rounding errors; tokens below min-p are dropped later
    floor = std::max(float(row.above + wanted.temperature * (std::log(wanted.min_p) - 1e-3)) - margin, -FLT_MAX);
  }
  bool needs_mass = weighs_all(wanted);
  double needed = needs_mass ? wanted.top_p * row.mass() : 0;
  int64_t columns = wanted.top_k > 0 ? wanted.top_k : needs_mass ? FIRST_LOOK : row.size;
  for (float least = FLT_MAX; least > NEVER; columns *= 8) {
    least = row.least_of(columns);
    row.gather(std::max(least, floor), some);
    if (!needs_mass || some.mass() >= needed) break;
  }
  drop_unlikely(some, wanted);
}

// Truncates by top-k, top-p and min-p. mass: of all tokens, if it is needed.
void truncate(Candidates& some, const Wanted& wanted, double mass) {
  if (wanted.top_k > 0) some.keep(some.reach(wanted.top_k, false));
  if (wanted.top_p < 1) some.keep(some.reach(wanted.top_p * (weighs_all(wanted) ? mass : some.mass()), true));
}

Race draw(const Row& row, const Wanted& wanted, Noise noise) {
  thread_local Candidates some;
  bool is_ordered = wanted.top_k > 0 || wanted.top_p < 1;
  if (!is_ordered && wanted.min_p == 0) return draw_from_all(row, noise);
  gather_candidates(row, wanted, some);
  truncate(some, wanted, row.weighs ? row.mass() : 0);
  return draw_from(some, row.first_token, noise);
}

// One rank's candidates of a row: the `most` likeliest tokens in the order of their ids; of equal ones, the smallest ids.
void gather_likeliest(const Row& row, int64_t first, int64_t most, float* logits, int32_t* tokens) {
  thread_local Candidates some;
  row.gather(std::max(row.least_of(most), -FLT_MAX), some);
  if (int64_t(some.ids.size()) > most) some.keep(some.reach(most, false));
  std::copy(some.logits.begin(), some.logits.end(), logits);
  for (size_t i = 0; i < some.ids.size(); ++i) tokens[i] = int32_t(first + some.ids[i]);
}

// Whether candidates suffice: no unknown token, whose logit is `least` or less, can be kept. The possible difference between
// a sum of masses by parts and that of a whole row must not matter either.
bool is_enough(const Candidates& some, const Wanted& wanted, double mass, float least, float above) {
  if (wanted.top_k > 0) return true;
  if (!weighs_all(wanted)) {
    float weights[LANES];
    store(weights, weights_of(all(least), above, 1.0f / float(wanted.temperature)));
    return weights[0] < wanted.min_p;
  }
  Depth from = some.reach(wanted.top_p * mass * (1 - ROUNDING), true);
  Depth to = some.reach(wanted.top_p * mass * (1 + ROUNDING), true);
  return from.key == to.key && from.ties == to.ties && (least == NEVER || to.key > key_of(least));
}

// The `most` likeliest tokens, or all if there are fewer, and their logits.
void rank(const Row& row, int64_t most, float* logits, int64_t* tokens) {
  thread_local Candidates some;
  row.gather(row.least_of(most), some);
  std::vector<int64_t> order(some.ids.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  auto is_before = [&](int64_t a, int64_t b) { return std::make_pair(some.keys[b], a) < std::make_pair(some.keys[a], b); };
  std::partial_sort(order.begin(), order.begin() + most, order.end(), is_before);
  for (int64_t i = 0; i < most; ++i) {
    tokens[i] = some.ids[order[i]];
    logits[i] = some.logits[order[i]];
  }
}

// Scans all pieces of all rows, then calls finish(row index). If there are few rows, threads share them by pieces.
template <class Finish>
void for_rows(std::vector<Row>& rows, const Finish& finish) {
  int64_t count = rows.size(), pieces = rows[0].pieces.size(), spans = (pieces + SPAN - 1) / SPAN;
  auto survey = [&](int64_t row, int64_t span) {
    for (int64_t index = span * SPAN; index < std::min(pieces, (span + 1) * SPAN); ++index) rows[row].survey(index);
  };
  bool shares = count < 2 * threads();
  if (shares) parallel_for(count * spans, spans > 1, [&](int64_t i) { survey(i / spans, i % spans); });
  parallel_for(count, count * pieces > SPAN, [&](int64_t row) {
    for (int64_t span = 0; !shares && span < spans; ++span) survey(row, span);
    rows[row].merge();
    finish(row);
  });
}

// A row for drawing a token or finding the likeliest; needs the row's mass only for top-p alone.
Row row_of(const float* logits, int64_t size, const Wanted& wanted) {
  bool draws = wanted.temperature > 0;
  return Row(logits, size, draws ? float(wanted.temperature) : 1.0f, draws && weighs_all(wanted));
}

}  // namespace

extern "C" {

// Samples a token for each of `count` rows of logits, `stride` values apart. slots: index into `wanted` for each row;
// positions: for its random numbers. broken: a byte each, 1 if nothing can be sampled; then the token is 0.
void quire_sample(const float* logits, int64_t stride, int64_t count, int64_t size, const Wanted* wanted,
                  const int64_t* slots, const int64_t* positions, int64_t* tokens, uint8_t* broken) {
  std::vector<Row> rows;
  rows.reserve(count);
  for (int64_t i = 0; i < count; ++i) rows.push_back(row_of(logits + i * stride, size, wanted[slots[i]]));
  for_rows(rows, [&](int64_t i) {
    const Wanted& each = wanted[slots[i]];
    broken[i] = rows[i].is_broken;
    bool draws = each.temperature > 0 && !rows[i].is_broken;
    tokens[i] = rows[i].is_broken ? 0
                : draws           ? draw(rows[i], each, Noise(each.seed, positions[i])).token
                                  : rows[i].likeliest();
  });
}

// Like quire_sample for a rank that has only the logits from token `first` on, for rows that draw without top-k and top-p.
// Returns the token that would be drawn among these, and its score; over all ranks, the greatest score wins. above: the
// greatest logit of each whole row.
void quire_sample_part(const float* logits, int64_t stride, int64_t count, int64_t size, int64_t first,
                       const float* above, const Wanted* wanted, const int64_t* slots, const int64_t* positions,
                       int64_t* tokens, double* scores) {
  std::vector<Row> rows;
  rows.reserve(count);
  for (int64_t i = 0; i < count; ++i) rows.push_back(row_of(logits + i * stride, size, wanted[slots[i]]));
  for_rows(rows, [&](int64_t i) {
    const Wanted& each = wanted[slots[i]];
    tokens[i] = scores[i] = 0;
    if (rows[i].is_broken) return;
    rows[i].first_token = first, rows[i].above = above[i];
    Race race = draw(rows[i], each, Noise(each.seed, positions[i]));
    tokens[i] = first + race.token, scores[i] = race.best;
  });
}

// For a rank that has only the logits from token `first` on, and rows that draw by top-k or top-p: the `most` likeliest
// tokens [count, most] in the order of their ids, padded with logits of minus infinity if there are fewer; and the mass of
// the rank's tokens if it is needed. above: the greatest logit of each whole row.
void quire_candidates(const float* logits, int64_t stride, int64_t count, int64_t size, int64_t first,
                      const float* above, const Wanted* wanted, const int64_t* slots, int64_t most, float* found,
                      int32_t* tokens, double* masses) {
  std::vector<Row> rows;
  rows.reserve(count);
  for (int64_t i = 0; i < count; ++i) rows.push_back(row_of(logits + i * stride, size, wanted[slots[i]]));
  for_rows(rows, [&](int64_t i) {
    Row& row = rows[i];
    masses[i] = 0;
    std::fill_n(found + i * most, most, NEVER), std::fill_n(tokens + i * most, most, 0);
    if (row.is_broken || !std::isfinite(above[i])) return;
    row.above = above[i];
    if (row.weighs) masses[i] = row.mass() * std::exp(double(row.greatest - row.above) * row.inverse_temperature);
    gather_likeliest(row, first, most, found + i * most, tokens + i * most);
  });
}

// Like quire_sample, from the results of quire_candidates on all ranks: logits and tokens [count, ranks, most], and the
// mass of each whole row. enough: a byte each, 0 if the token depends on tokens that are not among these.
void quire_sample_candidates(const float* found, const int32_t* ids, const double* masses, int64_t count, int64_t ranks,
                             int64_t most, const float* above, const Wanted* wanted, const int64_t* slots,
                             const int64_t* positions, int64_t* tokens, uint8_t* enough) {
  parallel_for(count, count * ranks * most > PIECE, [&](int64_t i) {
    thread_local Candidates some;
    const Wanted& each = wanted[slots[i]];
    tokens[i] = 0, enough[i] = 1;
    if (!std::isfinite(above[i])) return;
    some.clear();
    float least = NEVER;  // greatest of the full lists' least logits: a bound for all tokens that are not in a list
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const float* own = found + (i * ranks + rank) * most;
      for (int64_t at = 0; at < most; ++at)
        if (own[at] > NEVER) some.add(ids[(i * ranks + rank) * most + at], own[at]);
      least = std::max(least, *std::min_element(own, own + most));
    }
    some.weigh(above[i], 1.0f / float(each.temperature));
    drop_unlikely(some, each);
    enough[i] = is_enough(some, each, masses[i], least, above[i]);
    truncate(some, each, masses[i]);
    tokens[i] = draw_from(some, 0, Noise(each.seed, positions[i])).token;
  });
}

// What log-probabilities of rows are computed from: the log of the sum of exp(logits) or, if that is not asked for or a row
// is no distribution, the greatest logit; the rank of one given logit per row (how many are greater); and the `most`
// likeliest tokens with their logits [count, most], of equal ones the smallest ids first. A row with NaN gives NaN.
void quire_score(const float* logits, int64_t stride, int64_t count, int64_t size, int sums, const float* own,
                 double* totals, int64_t* greater, int64_t most, float* best_logits, int64_t* best_tokens) {
  std::vector<Row> rows;
  rows.reserve(count);
  for (int64_t i = 0; i < count; ++i) rows.emplace_back(logits + i * stride, size, 1.0f, sums);
  for_rows(rows, [&](int64_t i) {
    const Row& row = rows[i];
    totals[i] = row.greatest, greater[i] = 0;
    std::fill_n(best_logits + i * most, most, 0.0f), std::fill_n(best_tokens + i * most, most, 0);
    if (!row.has_numbers_only) totals[i] = std::numeric_limits<double>::quiet_NaN();
    if (row.has_numbers_only && sums && !row.is_broken) totals[i] += std::log(row.mass());
    if (!row.has_numbers_only) return;
    greater[i] = row.count_above(own[i]);
    if (most) rank(row, most, best_logits + i * most, best_tokens + i * most);
  });
}
}
