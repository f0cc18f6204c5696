// Selective state space models (Mamba, Mamba 2) and the gated delta rule, and the norms after them; see states.h. Tensors are
// float32, bfloat16 or float16; arithmetic is float32.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "parallel.h"
#include "recordable.h"
#include "state_tiles.h"
#include "states.h"

using namespace quire;

namespace {

// A vector function applied to a single number, so that results do not depend on the machine's math library.
template <class Function>
inline float of_one(Function function, float x) {
  float lanes[LANES];
  store(lanes, function(all(x)));
  return lanes[0];
}

template <class Value>
inline float widen(const Value* value) {
  return sum(load(value, 1));
}

template <class Value>
inline void widen(const Value* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; i += LANES) store(to + i, load(from + i, count - i), count - i);
}

// Scales a vector to `length`.
[[gnu::noinline]] void make_unit(float* vector, int64_t size, float length) {
  Floats squares = zero();
  for (int64_t i = 0; i < size; i += LANES) {
    Floats values = load(vector + i, size - i);
    squares = fma(values, values, squares);
  }
  Floats factor = all(length / std::sqrt(sum(squares) + 1e-6f));
  for (int64_t i = 0; i < size; i += LANES) store(vector + i, load(vector + i, size - i) * factor, size - i);
}

// The scan over some channels of one sequence: each has a state of `size` values, `channels` apart.
template <class Value, class Stored>
struct ChannelScan {
  const Value *hidden, *time_steps, *gates, *writes, *reads;
  int64_t hidden_stride, time_stride, gate_stride, write_stride, read_stride;
  const float *rates, *skip;
  States<Stored> states;
  int64_t size, channels;
  Value* output;

  void run(int64_t tokens, int64_t count) const {
    std::vector<float> write(size), read(size);
    const Stored* now = states.is_fresh ? nullptr : states.own;
    for (int64_t t = 0; t < tokens; ++t) {
      widen(writes + t * write_stride, write.data(), size);
      widen(reads + t * read_stride, read.data(), size);
      Stored* next = states.after(t, tokens);
      if (!next) next = states.own;  // for the token that follows
      for (int64_t c = 0; c < count; c += LANES) pass(t, c, count - c, write.data(), read.data(), now, next);
      now = next;
    }
  }

  void pass(int64_t t, int64_t c, int64_t left, const float* write, const float* read, const Stored* from,
            Stored* to) const {
    Floats time = softplus(load(time_steps + t * time_stride + c, left));
    Floats value = load(hidden + t * hidden_stride + c, left), weighed = time * value, total = zero();
    for (int64_t n = 0; n < size; ++n) {
      int64_t at = n * channels + c;
      Floats decay = exponential(time * load(rates + at, left));
      Floats now = fma(weighed, all(write[n]), (from ? load(from + at, left) : zero()) * decay);
      store(to + at, now, left);
      total = fma(now, all(read[n]), total);
    }
    Floats gate = load(gates + t * gate_stride + c, left);
    total = fma(value, load(skip + c, left), total);
    store(output + t * channels + c, total * gate * sigmoid(gate), left);
  }
};

}  // namespace

extern "C" {

// hidden, time_steps and gates [tokens, channels], writes and reads [tokens, size], to output [tokens, channels]; rates
// [size, channels], skip [channels], states [slots, size, channels].
void quire_scan_channels(int type, int stored, const Rows* hidden, const Rows* time_steps, const Rows* writes,
                         const Rows* reads, const Rows* gates, const float* rates, const float* skip, void* states,
                         const Sequences* sequences, int64_t channels, int64_t size, void* output) {
  int64_t pieces = (channels + CHANNELS - 1) / CHANNELS, tokens = sequences->starts[sequences->count];
  with_types(type, stored, [&](auto value, auto kept) {
    using Value = decltype(value);
    using Stored = decltype(kept);
    parallel_for(sequences->count * pieces, tokens * channels * size > WORTH_A_THREAD, [&](int64_t piece) {
      int64_t index = piece / pieces, first = piece % pieces * CHANNELS, start = sequences->starts[index];
      int64_t count = std::min(CHANNELS, channels - first);
      ChannelScan<Value, Stored>{
          hidden->row<Value>(start) + first, time_steps->row<Value>(start) + first, gates->row<Value>(start) + first,
          writes->row<Value>(start), reads->row<Value>(start), hidden->stride, time_steps->stride, gates->stride,
          writes->stride, reads->stride, rates + first, skip + first,
          States<Stored>(*sequences, index, states, size * channels, first), size, channels,
          (Value*)output + start * channels + first}
          .run(sequences->starts[index + 1] - start, count);
    });
  });
}

// hidden [tokens, heads, dim], time_steps [tokens, heads], writes and reads [tokens, groups, size], to output [tokens,
// heads, dim]; rates, skip and time_bias (which may be null) [heads], states [slots, heads, size, dim].
void quire_scan_heads(int type, int stored, const Rows* hidden, const Rows* time_steps, const Rows* writes,
                      const Rows* reads, const float* rates, const float* skip, const float* time_bias, float least_time,
                      float most_time, void* states, const Sequences* sequences, int64_t heads, int64_t groups,
                      int64_t size, int64_t dim, void* output) {
  int64_t tokens = sequences->starts[sequences->count];
  with_types(type, stored, [&](auto value, auto kept) {
    using Value = decltype(value);
    using Stored = decltype(kept);
    parallel_for(sequences->count * heads, tokens * heads * size * dim > WORTH_A_THREAD, [&](int64_t piece) {
      int64_t index = piece / heads, head = piece % heads, group = head / (heads / groups), start = sequences->starts[index];
      Vectors write(size), read(size);
      float times[AT_ONCE], decays[AT_ONCE], added[COLUMNS], total[COLUMNS];
      auto prepare = [&](int64_t token, int64_t place) {
        int64_t t = start + token;
        float time = widen(time_steps->row<Value>(t) + head) + (time_bias ? time_bias[head] : 0);
        times[place] = std::min(std::max(of_one(softplus, time), least_time), most_time);
        decays[place] = of_one(exponential, times[place] * rates[head]);
        widen(writes->row<Value>(t) + group * size, write.of(place), size);
        widen(reads->row<Value>(t) + group * size, read.of(place), size);
      };
      for_tiles(States<Stored>(*sequences, index, states, heads * size * dim, head * size * dim),
                sequences->starts[index + 1] - start, size, dim, prepare,
                [&](const auto& tile, int64_t first, int64_t token, int64_t place, int64_t) {
        int64_t at = head * dim + first, left = std::min(COLUMNS, dim - first);
        const Value* own = hidden->row<Value>(start + token) + at;
        Value* to = (Value*)output + (start + token) * heads * dim + at;
        for (int64_t i = 0; i < left; i += LANES) store(added + i, all(times[place]) * load(own + i, left - i));
        tile.template advance<false>(&decays[place], added, write.of(place), read.of(place), total, nullptr, nullptr);
        for (int64_t i = 0; i < left; i += LANES)
          store(to + i, fma(load(own + i, left - i), all(skip[head]), load(total + i)), left - i);
      });
    });
  });
}

// query and key [tokens, key_heads, size], value [tokens, heads, dim], time_steps and strengths [tokens, heads], to output
// [tokens, heads, dim]; rates and time_bias [heads], states [slots, heads, size, dim]. If each value of a key has a time
// step, these and time_bias are [heads, size]. Strengths go up to `strongest`.
void quire_delta_rule(int type, int stored, const Rows* query, const Rows* key, const Rows* value,
                      const Rows* time_steps, const Rows* strengths, const float* rates, const float* time_bias,
                      int has_steps_by_key, float strongest, void* states, const Sequences* sequences,
                      int64_t key_heads, int64_t heads, int64_t size, int64_t dim, void* output) {
  int64_t tokens = sequences->starts[sequences->count];
  with_types(type, stored, [&](auto one, auto kept) {
    using Value = decltype(one);
    using Stored = decltype(kept);
    parallel_for(sequences->count * heads, tokens * heads * size * dim > WORTH_A_THREAD, [&](int64_t piece) {
      int64_t index = piece / heads, head = piece % heads, at_key = head / (heads / key_heads) * size;
      int64_t start = sequences->starts[index], steps = has_steps_by_key ? size : 1;
      Vectors read(size), write(size), fades(steps), faded(size);
      float strength[AT_ONCE], news[COLUMNS], known[COLUMNS], total[COLUMNS];
      auto prepare = [&](int64_t token, int64_t place) {
        int64_t t = start + token;
        float *from = write.of(place), *fade = fades.of(place);
        widen(query->row<Value>(t) + at_key, read.of(place), size);
        widen(key->row<Value>(t) + at_key, from, size);
        make_unit(read.of(place), size, 1.0f / std::sqrt(float(size)));
        make_unit(from, size, 1.0f);
        for (int64_t i = 0; i < steps; i += LANES) {
          Floats time = load(time_steps->row<Value>(t) + head * steps + i, steps - i);
          time = softplus(time + load(time_bias + head * steps + i, steps - i));
          store(fade + i, exponential(time * all(rates[head])), steps - i);
        }
        for (int64_t i = 0; i < size; ++i) faded.of(place)[i] = fade[has_steps_by_key ? i : 0] * from[i];
        strength[place] = strongest * of_one(sigmoid, widen(strengths->row<Value>(t) + head));
      };
      for_tiles(States<Stored>(*sequences, index, states, heads * size * dim, head * size * dim),
                sequences->starts[index + 1] - start, size, dim, prepare,
                [&](const auto& tile, int64_t first, int64_t token, int64_t place, int64_t places) {
        int64_t at = head * dim + first, left = std::min(COLUMNS, dim - first);
        const Value* own = value->row<Value>(start + token) + at;
        Value* to = (Value*)output + (start + token) * heads * dim + at;
        if (!place) tile.sum_up(faded.of(0), known);
        for (int64_t i = 0; i < left; i += LANES)
          store(news + i, (load(own + i, left - i) - load(known + i)) * all(strength[place]));
        const float* ahead = place + 1 < places ? faded.of(place + 1) : nullptr;
        auto advance = [&](auto by_key) {
          tile.template advance<by_key>(fades.of(place), news, write.of(place), read.of(place), total, ahead,
                                        ahead ? known : nullptr);
        };
        if (has_steps_by_key) advance(std::true_type{});
        else advance(std::false_type{});
        for (int64_t i = 0; i < left; i += LANES) store(to + i, load(total + i), left - i);
      });
    });
  });
}

// hidden and gates [rows, groups, size], weight [groups, size], to output [rows, groups, size]: RMS norms of groups, after
// gating or before it. The gate is SiLU, or only the sigmoid.
void quire_gated_norm(int type, const Rows* hidden, const Rows* gates, const void* weight, float epsilon,
                      int gates_first, int is_sigmoid, int64_t rows, int64_t groups, int64_t size, void* output) {
  with_type(type, [&](auto value) {
    using Value = decltype(value);
    parallel_for(rows, rows * groups * size > WORTH_A_THREAD, [&](int64_t row) {
      std::vector<float> values(size), open(size);
      for (int64_t group = 0; group < groups; ++group) {
        const Value* from = hidden->row<Value>(row) + group * size;
        const Value* gate = gates->row<Value>(row) + group * size;
        Floats squares = zero();
        for (int64_t i = 0; i < size; i += LANES) {
          Floats z = load(gate + i, size - i), opened = sigmoid(z), each = load(from + i, size - i);
          if (!is_sigmoid) opened = z * opened;
          if (gates_first) each = each * opened;
          squares = fma(each, each, squares);
          store(&values[i], each, size - i);
          store(&open[i], gates_first ? all(1.0f) : opened, size - i);
        }
        Floats factor = all(1.0f / std::sqrt(sum(squares) / float(size) + epsilon));
        for (int64_t i = 0; i < size; i += LANES) {
          Floats each = load(&values[i], size - i) * factor * load((const Value*)weight + group * size + i, size - i);
          store((Value*)output + (row * groups + group) * size + i, each * load(&open[i], size - i), size - i);
        }
      }
    });
  });
}
}

RECORDABLE(scan_channels)
RECORDABLE(scan_heads)
RECORDABLE(delta_rule)
RECORDABLE(gated_norm)
