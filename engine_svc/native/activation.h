// The activations of feed-forward layers, gated or not.
#pragma once

#include "vector.h"

namespace quire {

enum Gate { SILU, GELU, CLAMPED, ERF_GELU, RELU, SQUARED_RELU, CLIPPED };  // as the caller numbers them

// A gate, with the slope and limit of those that have them.
struct Activation {
  int gate;
  float slope, limit;
};

// x times the normal distribution's cumulative probability at x: the error function by Hastings' polynomial
// (Abramowitz and Stegun 7.1.26), with an error of at most 1.5e-7.
inline Floats erf_gelu(Floats x) {
  Floats z = magnitude(x) * all(0.70710678118f), t = all(1.0f) / fma(z, all(0.3275911f), all(1.0f));
  Floats y = fma(t, all(1.061405429f), all(-1.453152027f));
  y = fma(y, t, all(1.421413741f));
  y = fma(y, t, all(-0.284496736f));
  y = fma(y, t, all(0.254829592f));
  Floats tail = y * t * all(0.5f) * exponential(zero() - z * z);
  return x * select(at_least(x, zero()), all(1.0f) - tail, tail);
}

// The activation of ungated layers.
template <Gate GATE>
inline Floats activated(Floats x) {
  if (GATE == RELU) return most(zero(), x);
  if (GATE == SQUARED_RELU) return most(zero(), x) * most(zero(), x);
  if (GATE == ERF_GELU) return erf_gelu(x);
  Floats z = GATE == GELU ? x * fma(x * x, all(0.044715f), all(1.0f)) * all(1.5957691216f) : x;
  return x / (all(1.0f) + exponential(zero() - z));
}

// gate_up [2 * size]: gate * sigmoid(z) * up. For SiLU, z is the gate itself. For tanh GELU (Hendrycks and Gimpel 2016),
// z follows from (1 + tanh(z / 2)) / 2 = sigmoid(z). For the clamped gate, z is steeper, and 1 is added to up. The clipped
// one is SiLU up to a limit of its own, which takes the place of the slope.
template <Gate GATE, class Value>
inline void activate_and_multiply(const Activation& form, const Value* gate_up, Value* output, int64_t size) {
  for (int64_t i = 0; i < size; i += LANES) {
    Floats gate = load(gate_up + i, size - i), up = load(gate_up + size + i, size - i), z = gate;
    if (GATE == ERF_GELU || GATE == RELU || GATE == SQUARED_RELU) {
      store(output + i, activated<GATE>(gate) * up, size - i);
      continue;
    }
    if (GATE == CLIPPED) {
      Floats most_up = most(all(-form.limit), least(all(form.limit), up));
      store(output + i, least(all(form.slope), activated<SILU>(gate)) * most_up, size - i);
      continue;
    }
    if (GATE == GELU) z = gate * fma(gate * gate, all(0.044715f), all(1.0f)) * all(1.5957691216f);
    if (GATE == CLAMPED) {
      gate = least(all(form.limit), gate), z = gate * all(form.slope);
      up = most(all(-form.limit), least(all(form.limit), up)) + all(1.0f);
    }
    store(output + i, gate * up / (all(1.0f) + exponential(zero() - z)), size - i);
  }
}

template <class Value>
inline void activate_and_multiply(const Activation& form, const Value* gate_up, Value* output, int64_t size) {
  switch (form.gate) {
    case SILU: return activate_and_multiply<SILU>(form, gate_up, output, size);
    case GELU: return activate_and_multiply<GELU>(form, gate_up, output, size);
    case CLAMPED: return activate_and_multiply<CLAMPED>(form, gate_up, output, size);
    case ERF_GELU: return activate_and_multiply<ERF_GELU>(form, gate_up, output, size);
    case RELU: return activate_and_multiply<RELU>(form, gate_up, output, size);
    case SQUARED_RELU: return activate_and_multiply<SQUARED_RELU>(form, gate_up, output, size);
    case CLIPPED: return activate_and_multiply<CLIPPED>(form, gate_up, output, size);
  }
}

// The numbers of an xIELU, as the caller has them.
struct Xielu {
  float rise, fall, slope, limit;
};

// e^x - 1 - x for x up to 0: from -1 on by its series, because there the difference would lose most of its digits.
inline Floats exponential_rest(Floats x) {
  Floats y = all(1.0f / 3628800);
  y = fma(y, x, all(1.0f / 362880));
  y = fma(y, x, all(1.0f / 40320));
  y = fma(y, x, all(1.0f / 5040));
  y = fma(y, x, all(1.0f / 720));
  y = fma(y, x, all(1.0f / 120));
  y = fma(y, x, all(1.0f / 24));
  y = fma(y, x, all(1.0f / 6));
  y = fma(y, x, all(0.5f));
  return select(at_least(x, all(-1.0f)), y * x * x, exponential(x) - all(1.0f) - x);
}

// slope * x, and rise * x^2 if x > 0, else (slope + fall) * (e^least(x, limit) - 1 - x). NaN stays NaN.
inline Floats xielu(const Xielu& form, Floats x) {
  Floats below = least(all(form.limit), x);
  Floats falling = all(form.slope + form.fall) * (exponential_rest(below) + (below - x));
  return fma(all(form.slope), x, select(at_least(zero(), x), falling, all(form.rise) * x * x));
}

template <Gate GATE, class Value>
inline void activate(Value* values, int64_t size) {
  for (int64_t i = 0; i < size; i += LANES) store(values + i, activated<GATE>(load(values + i, size - i)), size - i);
}

// Activates values [size] in place; not for the clamped and the clipped gate.
template <class Value>
inline void activate(int gate, Value* values, int64_t size) {
  switch (gate) {
    case SILU: return activate<SILU>(values, size);
    case GELU: return activate<GELU>(values, size);
    case ERF_GELU: return activate<ERF_GELU>(values, size);
    case RELU: return activate<RELU>(values, size);
    case SQUARED_RELU: return activate<SQUARED_RELU>(values, size);
  }
}

}  // namespace quire
