// The gated activations of feed-forward layers.
#pragma once

#include "vector.h"

namespace quire {

enum Gate { SILU, GELU, CLAMPED };  // as the caller numbers them

// A gate, with what the clamped one has beside.
struct Activation {
  int gate;
  float slope, limit;
};

// gate_up [2 * size]: gate * sigmoid(z) * up. z is gate itself (SiLU), or what makes it GELU by the hyperbolic tangent
// (Hendrycks and Gimpel 2016): (1 + tanh(z / 2)) / 2 is sigmoid(z). Clamped, z is steeper, and up counts from -1 on.
template <Gate GATE, class Value>
inline void activate_and_multiply(const Activation& form, const Value* gate_up, Value* output, int64_t size) {
  for (int64_t i = 0; i < size; i += LANES) {
    Floats gate = load(gate_up + i, size - i), up = load(gate_up + size + i, size - i), z = gate;
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
  }
}

}  // namespace quire
