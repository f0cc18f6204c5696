// Short convolutions and gated linear recurrent units; see states.h. Tensors are float32, bfloat16 or float16; arithmetic is
// float32.
#include <algorithm>
#include <type_traits>

#include "parallel.h"
#include "recordable.h"
#include "states.h"

using namespace quire;

namespace {

constexpr int MOST_TAPS = 16;  // as in recurrence/base.py

// Convolves LANES channels of one sequence, of which `count` are wanted. `read(token)` returns inputs, and `put(token, sums)`
// takes results. `seen(token)` are inputs before the first one, too, as the filter sees them: in the state's precision.
template <int TAPS, class Stored, class Read, class Seen, class Put>
inline void filter(int64_t tokens, const float* weight, const float* bias, int64_t channels, int64_t taps, int64_t count,
                   const Read& read, const Seen& seen, const Put& put) {
  const int64_t before = (TAPS ? TAPS : taps) - 1;
  Floats by[TAPS ? TAPS : MOST_TAPS], past[TAPS ? TAPS : MOST_TAPS], added = bias ? load(bias, count) : zero();
  for (int64_t tap = 0; tap <= before; ++tap) by[tap] = load(weight + tap * channels, count);
  for (int64_t tap = 0; tap < before; ++tap) past[tap] = seen(tap - before);
  for (int64_t t = 0; t < tokens; ++t) {
    Floats sum = added;
    past[before] = rounded<Stored>(read(t));
    for (int64_t tap = 0; tap <= before; ++tap) sum = fma(past[tap], by[tap], sum);
    for (int64_t tap = 0; tap < before; ++tap) past[tap] = past[tap + 1];
    put(t, sum);
  }
}

// Convolves `count` channels of one sequence. `read(token, c)` returns inputs of its `tokens` new tokens, and
// `put(token, c, sums)` takes results. Inputs before the first token are in the state.
template <class Stored, class Read, class Put>
void convolve(int64_t tokens, const float* weight, const float* bias, const States<Stored>& states, int64_t channels,
              int64_t taps, int64_t count, const Read& read, const Put& put) {
  auto seen = [&](int64_t token, int64_t c) {
    if (token >= 0) return rounded<Stored>(read(token, c));
    return states.is_fresh ? zero() : load(states.own + (token + taps - 1) * channels + c, count - c);
  };
  for (int64_t c = 0; c < count; c += LANES) {
    auto go = [&](auto known) {
      filter<known, Stored>(tokens, weight + c, bias ? bias + c : nullptr, channels, taps, count - c,
                            [&](int64_t t) { return read(t, c); }, [&](int64_t t) { return seen(t, c); },
                            [&](int64_t t, Floats sum) { put(t, c, sum); });
    };
    if (taps == 4) go(std::integral_constant<int, 4>{});
    else go(std::integral_constant<int, 0>{});
  }
  auto keep = [&](int64_t t, Stored* to) {
    for (int64_t i = 0; i < taps - 1; ++i)
      for (int64_t c = 0; c < count; c += LANES) store(to + i * channels + c, seen(t - taps + 2 + i, c), count - c);
  };
  int64_t last = -1;  // the token after which the old state is overwritten, when all others have read it
  for (int64_t t = states.targets ? 0 : tokens - 1; t < tokens; ++t)
    if (Stored* to = states.after(t, tokens)) {
      if (to == states.own) last = t;
      else keep(t, to);
    }
  if (last >= 0) keep(last, states.own);
}

// Calls work(first token, number of tokens, first channel, number of channels, states) for some channels of a sequence;
// states [slots, rows, channels].
template <class Stored, class Work>
void for_channels(const Sequences& sequences, void* states, int64_t rows, int64_t channels, const Work& work) {
  int64_t pieces = (channels + CHANNELS - 1) / CHANNELS, tokens = sequences.starts[sequences.count];
  parallel_for(sequences.count * pieces, tokens * channels > WORTH_A_THREAD, [&](int64_t piece) {
    int64_t index = piece / pieces, first = piece % pieces * CHANNELS, start = sequences.starts[index];
    work(start, sequences.starts[index + 1] - start, first, std::min(CHANNELS, channels - first),
         States<Stored>(sequences, index, states, rows * channels, first));
  });
}

}  // namespace

extern "C" {

// Convolves inputs [tokens, channels] to output [tokens, channels]; weight [taps, channels], bias [channels] or null;
// history [slots, taps - 1, channels]. Applies SiLU to the sums if asked for.
void quire_convolve(int type, int stored, const Rows* inputs, const float* weight, const float* bias, void* history,
                    const Sequences* sequences, int64_t channels, int64_t taps, void* output, int activates) {
  with_types(type, stored, [&](auto value, auto state) {
    using Value = decltype(value);
    using Stored = decltype(state);
    for_channels<Stored>(*sequences, history, taps - 1, channels, [&](int64_t start, int64_t tokens, int64_t first,
                         int64_t count, const States<Stored>& states) {
      const Value* from = inputs->row<Value>(start) + first;
      Value* to = (Value*)output + start * channels + first;
      convolve(tokens, weight + first, bias ? bias + first : nullptr, states, channels, taps, count,
               [&](int64_t t, int64_t c) { return load(from + t * inputs->stride + c, count - c); },
               [&](int64_t t, int64_t c, Floats sum) {
                 store(to + t * channels + c, activates ? sum * sigmoid(sum) : sum, count - c);
               });
    });
  });
}

// The same for inputs [tokens, 3, channels]: convolves the first times the third, and multiplies the result by the second.
void quire_gated_convolve(int type, int stored, const Rows* inputs, const float* weight, const float* bias, void* history,
                          const Sequences* sequences, int64_t channels, int64_t taps, void* output) {
  with_types(type, stored, [&](auto value, auto state) {
    using Value = decltype(value);
    using Stored = decltype(state);
    for_channels<Stored>(*sequences, history, taps - 1, channels, [&](int64_t start, int64_t tokens, int64_t first,
                         int64_t count, const States<Stored>& states) {
      auto part = [&](int64_t t, int64_t c, int which) {
        return load(inputs->row<Value>(start + t) + which * channels + first + c, count - c);
      };
      Value* to = (Value*)output + start * channels + first;
      convolve(tokens, weight + first, bias ? bias + first : nullptr, states, channels, taps, count,
               [&](int64_t t, int64_t c) { return part(t, c, 0) * part(t, c, 2); },
               [&](int64_t t, int64_t c, Floats sum) {
                 store(to + t * channels + c, part(t, c, 1) * sum, count - c);
               });
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
    for_channels<Stored>(*sequences, states, 1, channels, [&](int64_t start, int64_t tokens, int64_t first, int64_t count,
                         const States<Stored>& held) {
      float state[CHANNELS];
      for (int64_t c = 0; c < count; c += LANES) store(state + c, held.is_fresh ? zero() : load(held.own + c, count - c));
      for (int64_t t = 0; t < tokens; ++t) {
        Stored* kept = held.after(t, tokens);
        for (int64_t c = 0; c < count; c += LANES) {
          int64_t at = first + c, left = count - c;
          auto from = [&](const Rows* rows) { return load(rows->row<Value>(start + t) + at, left); };
          Floats decay = exponential(load(rates + at, left) * sigmoid(from(decay_gates) + load(decay_bias + at, left)));
          Floats news = from(hidden) * sigmoid(from(input_gates) + load(input_bias + at, left));
          if (t || !held.is_fresh) news = fma(load(state + c), decay, news * root(all(1.0f) - decay * decay));
          store((Value*)output + (start + t) * channels + at, news, left);
          news = rounded<Stored>(news);
          store(state + c, news);
          if (kept) store(kept + c, news, left);
        }
      }
    });
  });
}
}

RECORDABLE(convolve)
RECORDABLE(gated_convolve)
RECORDABLE(gated_units)
