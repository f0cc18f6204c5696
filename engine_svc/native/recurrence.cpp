// The operations of recurrent layers on per-sequence states: short convolutions, selective state space models (Mamba,
// Mamba 2), gated linear recurrent units and the gated delta rule. Tensors are float32, bfloat16 or float16; arithmetic is
// float32.
//
// A sequence's tokens are processed one after the other, with the same operations for a prompt as for a single token. A
// piece of work is a sequence's head or some of its channels, whose state stays in a core's cache for all tokens.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "parallel.h"
#include "recordable.h"
#include "types.h"

using namespace quire;

// The sequences of a batch's rows, and their states' slots, as passed by the caller.
struct Sequences {
  const int32_t* starts;  // [count + 1]
  const int64_t* slots;
  const bool* is_fresh;  // whether a sequence's slot holds old data of another sequence
  int64_t count;
};

// Rows that are `stride` values apart.
struct Rows {
  const void* values;
  int64_t stride;

  template <class Value>
  const Value* row(int64_t index) const {
    return (const Value*)values + index * stride;
  }
};

namespace {

constexpr int64_t WORTH_A_THREAD = 1 << 14;  // values of states: below this, waking a thread costs more than it saves
constexpr int64_t CHANNELS = 256;            // per piece
constexpr int WIDE = 4;                      // vectors processed side by side

inline Floats sigmoid(Floats x) { return all(1.0f) / (all(1.0f) + exponential(zero() - x)); }

// log(1 + e^x) to 2 units in the last place, by the series of log(1 + u) = 2 * artanh(u / (2 + u)) with u = e^-|x|.
inline Floats softplus(Floats x) {
  Floats u = exponential(zero() - magnitude(x)), s = u / (all(2.0f) + u), z = s * s;
  Floats y = all(1.0f / 17);
  for (float odd : {15.0f, 13.0f, 11.0f, 9.0f, 7.0f, 5.0f, 3.0f, 1.0f}) y = fma(y, z, all(1.0f / odd));
  return fma(all(2.0f) * s, y, most(zero(), x));
}

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

// Values rounded to a type.
template <class Stored>
inline Floats rounded(Floats values) {
  if (sizeof(Stored) == sizeof(float)) return values;
  Stored copy[LANES];
  store(copy, values);
  return load(copy);
}

// Calls work(first, vectors) for all vectors of `size` values, several at a time while enough are left.
template <class Work>
inline void for_vectors(int64_t size, const Work& work) {
  int64_t i = 0;
  for (; size - i > (WIDE - 1) * LANES; i += WIDE * LANES) work(i, std::integral_constant<int, WIDE>{});
  for (; i < size; i += LANES) work(i, std::integral_constant<int, 1>{});
}

template <class Call>
void with_types(int type, int stored, const Call& call) {
  with_type(type, [&](auto value) { with_type(stored, [&](auto state) { call(value, state); }); });
}

// Convolves LANES channels of one sequence. `read(place)` returns the input of each of its `tokens` new tokens, rounded to
// the state's type, and `put(place, sum)` takes the result. Inputs before the first token are in `history`.
template <class Stored, class Read, class Put>
void convolve(int64_t tokens, const float* weight, const float* bias, Stored* history, bool is_fresh, int64_t channels,
              int64_t taps, int64_t count, const Read& read, const Put& put) {
  auto seen = [&](int64_t place) {
    if (place >= 0) return rounded<Stored>(read(place));
    return is_fresh ? zero() : load(history + (place + taps - 1) * channels, count);
  };
  for (int64_t t = 0; t < tokens; ++t) {
    Floats sum = bias ? load(bias, count) : zero();
    for (int64_t tap = 0; tap < taps; ++tap)
      sum = fma(seen(t - taps + 1 + tap), load(weight + tap * channels, count), sum);
    put(t, sum);
  }
  for (int64_t i = 0; i < taps - 1; ++i) store(history + i * channels, seen(tokens - taps + 1 + i), count);
}

// Calls work(sequence, first token, number of tokens, channel, state, remaining channels) for LANES channels at a time;
// states [slots, rows, channels].
template <class Stored, class Work>
void for_channels(const Sequences& sequences, Stored* states, int64_t rows, int64_t channels, const Work& work) {
  int64_t pieces = (channels + CHANNELS - 1) / CHANNELS, tokens = sequences.starts[sequences.count];
  parallel_for(sequences.count * pieces, tokens * channels > WORTH_A_THREAD, [&](int64_t piece) {
    int64_t index = piece / pieces, first = piece % pieces * CHANNELS, start = sequences.starts[index];
    Stored* held = states + sequences.slots[index] * rows * channels;
    for (int64_t c = first; c < std::min(channels, first + CHANNELS); c += LANES)
      work(index, start, sequences.starts[index + 1] - start, c, held + c, channels - c);
  });
}

// Multiplies each row of a state [rows, size] by its decay (decays are `step` apart; 0: the same for all), adds `values`
// [size] times `write` [rows], and reads output [size]. Not inlined, as the code is the same for all types of a model.
template <class Stored>
[[gnu::noinline]] void write_and_read(Stored* state, int64_t rows, int64_t size, const float* decays, int64_t step,
                                      const float* values, const float* write, const float* read, float* output) {
  for_vectors(size, [=](int64_t i, auto vectors) {
    constexpr int COUNT = vectors;
    Floats value[COUNT], total[COUNT];
    for (int v = 0; v < COUNT; ++v) {
      value[v] = load(values + i + v * LANES, size - i - v * LANES);
      total[v] = zero();
    }
    for (int64_t row = 0; row < rows; ++row)
      for (int v = 0; v < COUNT; ++v) {
        Stored* at = state + row * size + i + v * LANES;
        int64_t left = size - i - v * LANES;
        Floats now = fma(value[v], all(write[row]), load(at, left) * all(decays[row * step]));
        store(at, now, left);
        total[v] = fma(now, all(read[row]), total[v]);
      }
    for (int v = 0; v < COUNT; ++v) store(output + i + v * LANES, total[v], size - i - v * LANES);
  });
}

// Reads output [size] from a state [rows, size] without changing it.
template <class Stored>
[[gnu::noinline]] void read_only(const Stored* state, int64_t rows, int64_t size, const float* read, float* output) {
  for_vectors(size, [=](int64_t i, auto vectors) {
    constexpr int COUNT = vectors;
    Floats total[COUNT];
    for (int v = 0; v < COUNT; ++v) total[v] = zero();
    for (int64_t row = 0; row < rows; ++row)
      for (int v = 0; v < COUNT; ++v) {
        int64_t at = i + v * LANES;
        total[v] = fma(load(state + row * size + at, size - at), all(read[row]), total[v]);
      }
    for (int v = 0; v < COUNT; ++v) store(output + i + v * LANES, total[v], size - i - v * LANES);
  });
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
  Stored* state;
  int64_t size, channels;
  Value* output;

  void run(int64_t tokens, int64_t count) const {
    std::vector<float> write(size), read(size);
    for (int64_t t = 0; t < tokens; ++t) {
      widen(writes + t * write_stride, write.data(), size);
      widen(reads + t * read_stride, read.data(), size);
      for (int64_t c = 0; c < count; c += LANES) pass(t, c, count - c, write.data(), read.data());
    }
  }

  void pass(int64_t t, int64_t c, int64_t left, const float* write, const float* read) const {
    Floats time = softplus(load(time_steps + t * time_stride + c, left));
    Floats value = load(hidden + t * hidden_stride + c, left), weighed = time * value, total = zero();
    for (int64_t n = 0; n < size; ++n) {
      Stored* at = state + n * channels + c;
      Floats decay = exponential(time * load(rates + n * channels + c, left));
      Floats now = fma(weighed, all(write[n]), load(at, left) * decay);
      store(at, now, left);
      total = fma(now, all(read[n]), total);
    }
    Floats gate = load(gates + t * gate_stride + c, left);
    total = fma(value, load(skip + c, left), total);
    store(output + t * channels + c, total * gate * sigmoid(gate), left);
  }
};

}  // namespace

extern "C" {

// Convolves inputs [tokens, channels] to output [tokens, channels]; weight [taps, channels], bias [channels] or null;
// history [slots, taps - 1, channels]. Applies SiLU to the sums if asked for.
void quire_convolve(int type, int stored, const Rows* inputs, const float* weight, const float* bias, void* history,
                    const Sequences* sequences, int64_t channels, int64_t taps, void* output, int activates) {
  with_types(type, stored, [&](auto value, auto state) {
    using Value = decltype(value);
    for_channels(*sequences, (decltype(state)*)history, taps - 1, channels, [&](int64_t index, int64_t start,
                 int64_t tokens, int64_t c, auto* held, int64_t left) {
      const Value* from = inputs->row<Value>(start) + c;
      Value* to = (Value*)output + start * channels + c;
      convolve(tokens, weight + c, bias ? bias + c : nullptr, held, sequences->is_fresh[index], channels, taps, left,
               [&](int64_t t) { return load(from + t * inputs->stride, left); },
               [&](int64_t t, Floats sum) { store(to + t * channels, activates ? sum * sigmoid(sum) : sum, left); });
    });
  });
}

// The same for inputs [tokens, 3, channels]: convolves the first times the third, and multiplies the result by the second.
void quire_gated_convolve(int type, int stored, const Rows* inputs, const float* weight, const float* bias, void* history,
                          const Sequences* sequences, int64_t channels, int64_t taps, void* output) {
  with_types(type, stored, [&](auto value, auto state) {
    using Value = decltype(value);
    for_channels(*sequences, (decltype(state)*)history, taps - 1, channels, [&](int64_t index, int64_t start,
                 int64_t tokens, int64_t c, auto* held, int64_t left) {
      auto part = [&](int64_t t, int which) {
        return load(inputs->row<Value>(start + t) + which * channels + c, left);
      };
      Value* to = (Value*)output + start * channels + c;
      convolve(tokens, weight + c, bias ? bias + c : nullptr, held, sequences->is_fresh[index], channels, taps, left,
               [&](int64_t t) { return part(t, 0) * part(t, 2); },
               [&](int64_t t, Floats sum) { store(to + t * channels, part(t, 1) * sum, left); });
    });
  });
}

// hidden, input_gates and decay_gates [tokens, channels], to output [tokens, channels]; the gates' biases and rates
// [channels], states [slots, channels]. Inputs are scaled by what the state loses, except for a sequence's first token.
void quire_gated_units(int type, int stored, const Rows* hidden, const Rows* input_gates, const Rows* decay_gates,
                       const float* input_bias, const float* decay_bias, const float* rates, void* states,
                       const Sequences* sequences, int64_t channels, void* output) {
  with_types(type, stored, [&](auto value, auto kept) {
    using Value = decltype(value);
    using Stored = decltype(kept);
    for_channels(*sequences, (Stored*)states, 1, channels, [&](int64_t index, int64_t start, int64_t tokens, int64_t c,
                 Stored* held, int64_t left) {
      bool is_fresh = sequences->is_fresh[index];
      Floats state = is_fresh ? zero() : load(held, left);
      for (int64_t t = 0; t < tokens; ++t) {
        auto from = [&](const Rows* rows) { return load(rows->row<Value>(start + t) + c, left); };
        Floats decay = exponential(load(rates + c, left) * sigmoid(from(decay_gates) + load(decay_bias + c, left)));
        Floats news = from(hidden) * sigmoid(from(input_gates) + load(input_bias + c, left));
        if (t || !is_fresh) news = fma(state, decay, news * root(all(1.0f) - decay * decay));
        store((Value*)output + (start + t) * channels + c, news, left);
        state = rounded<Stored>(news);
      }
      store(held, state, left);
    });
  });
}

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
      Stored* state = (Stored*)states + sequences->slots[index] * size * channels + first;
      for (int64_t n = 0; sequences->is_fresh[index] && n < size; ++n) std::fill_n(state + n * channels, count, Stored{});
      ChannelScan<Value, Stored>{
          hidden->row<Value>(start) + first, time_steps->row<Value>(start) + first, gates->row<Value>(start) + first,
          writes->row<Value>(start), reads->row<Value>(start), hidden->stride, time_steps->stride, gates->stride,
          writes->stride, reads->stride, rates + first, skip + first, state, size, channels,
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
      int64_t index = piece / heads, head = piece % heads, group = head / (heads / groups);
      Stored* state = (Stored*)states + (sequences->slots[index] * heads + head) * size * dim;
      if (sequences->is_fresh[index]) std::fill_n(state, size * dim, Stored{});
      std::vector<float> write(size), read(size), own(dim), weighed(dim), total(dim);
      for (int64_t t = sequences->starts[index]; t < sequences->starts[index + 1]; ++t) {
        float time = widen(time_steps->row<Value>(t) + head) + (time_bias ? time_bias[head] : 0);
        time = std::min(std::max(of_one(softplus, time), least_time), most_time);
        widen(writes->row<Value>(t) + group * size, write.data(), size);
        widen(reads->row<Value>(t) + group * size, read.data(), size);
        widen(hidden->row<Value>(t) + head * dim, own.data(), dim);
        for (int64_t i = 0; i < dim; ++i) weighed[i] = time * own[i];
        float decay = of_one(exponential, time * rates[head]);
        write_and_read(state, size, dim, &decay, 0, weighed.data(), write.data(), read.data(), total.data());
        Value* to = (Value*)output + (t * heads + head) * dim;
        for (int64_t i = 0; i < dim; i += LANES)
          store(to + i, fma(load(&own[i], dim - i), all(skip[head]), load(&total[i], dim - i)), dim - i);
      }
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
      int64_t index = piece / heads, head = piece % heads, key_head = head / (heads / key_heads);
      Stored* state = (Stored*)states + (sequences->slots[index] * heads + head) * size * dim;
      if (sequences->is_fresh[index]) std::fill_n(state, size * dim, Stored{});
      std::vector<float> read(size), write(size), fades(size), faded(size), news(dim), known(dim), total(dim);
      int64_t steps = has_steps_by_key ? size : 1;
      for (int64_t t = sequences->starts[index]; t < sequences->starts[index + 1]; ++t) {
        widen(query->row<Value>(t) + key_head * size, read.data(), size);
        widen(key->row<Value>(t) + key_head * size, write.data(), size);
        make_unit(read.data(), size, 1.0f / std::sqrt(float(size)));
        make_unit(write.data(), size, 1.0f);
        for (int64_t i = 0; i < steps; i += LANES) {
          Floats time = load(time_steps->row<Value>(t) + head * steps + i, steps - i);
          time = softplus(time + load(time_bias + head * steps + i, steps - i));
          store(&fades[i], exponential(time * all(rates[head])), steps - i);
        }
        if (!has_steps_by_key) std::fill(fades.begin(), fades.end(), fades[0]);
        for (int64_t i = 0; i < size; ++i) faded[i] = fades[i] * write[i];
        float strength = strongest * of_one(sigmoid, widen(strengths->row<Value>(t) + head));
        widen(value->row<Value>(t) + head * dim, news.data(), dim);
        read_only(state, size, dim, faded.data(), known.data());
        for (int64_t i = 0; i < dim; ++i) news[i] = (news[i] - known[i]) * strength;
        write_and_read(state, size, dim, fades.data(), has_steps_by_key, news.data(), write.data(), read.data(),
                       total.data());
        Value* to = (Value*)output + (t * heads + head) * dim;
        for (int64_t i = 0; i < dim; i += LANES) store(to + i, load(&total[i], dim - i), dim - i);
      }
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

RECORDABLE(convolve)
RECORDABLE(gated_convolve)
RECORDABLE(gated_units)
RECORDABLE(scan_channels)
RECORDABLE(scan_heads)
RECORDABLE(delta_rule)
RECORDABLE(gated_norm)
