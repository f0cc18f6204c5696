// The gated activations of feed-forward layers.
#pragma once

#include "vector.h"

namespace quire {

// gate_up [2 * size]: gate * sigmoid(z) * up. z is gate itself (SiLU), or what makes it GELU by the hyperbolic tangent
// (Hendrycks and Gimpel 2016): (1 + tanh(z / 2)) / 2 is sigmoid(z).
template <bool GELU, class Value>
inline void activate_and_multiply(const Value* gate_up, Value* output, int64_t size) {
  for (int64_t i = 0; i < size; i += LANES) {
    Floats gate = load(gate_up + i, size - i), up = load(gate_up + size + i, size - i), z = gate;
    if (GELU) z = gate * fma(gate * gate, all(0.044715f), all(1.0f)) * all(1.5957691216f);
    store(output + i, gate * up / (all(1.0f) + exponential(zero() - z)), size - i);
  }
}

}  // namespace quire
