// Quantizes 16-bit or 32-bit weights to 4-bit codes while they are loaded; ops/rounding.py does the same in torch, with the
// same codes and scales.
#include <algorithm>
#include <memory>

#include "parallel.h"
#include "types.h"

using namespace quire;

namespace {

// The magnitudes tried for a group's greatest weight before clamping; see ops/rounding.py.
constexpr float ENDS[] = {8.0f, 7.3f, 8.7f, 9.4f};

// Sums in double of products of a float32 with a four-bit integer, for weights within a factor of 32 of each other: exact,
// and so the same in any order.
struct Sum {
  double lanes[LANES] = {};

  void add(const float* weights, const float* codes) {
    for (int i = 0; i < LANES; ++i) lanes[i] += double(weights[i]) * double(codes[i]);
  }
  double total() const {
    double found = 0;
    for (double lane : lanes) found += lane;
    return found;
  }
};

// A group's weights, filled up with zeros to whole vectors.
struct Group {
  std::unique_ptr<float[]> weights, steps;
  std::unique_ptr<uint8_t[]> best;
  int64_t size, whole;

  explicit Group(int64_t size)
      : weights(new float[size + LANES]), steps(new float[size + LANES]), best(new uint8_t[size]), size(size), whole(0) {}

  template <class Value>
  void read(const Value* from, int64_t count) {
    size = count, whole = (count + LANES - 1) / LANES * LANES;
    for (int64_t k = 0; k < size; k += LANES) store(weights.get() + k, load(from + k, size - k));
  }
  // The weight with the greatest absolute value; the first if there are several.
  float extreme() const {
    Floats most_yet = zero();
    for (int64_t k = 0; k < whole; k += LANES) most_yet = most(most_yet, magnitude(load(weights.get() + k)));
    Floats wanted = all(greatest(most_yet));
    for (int64_t k = 0; k < whole; k += LANES)
      if (uint32_t found = bits(at_least(magnitude(load(weights.get() + k)), wanted)))
        return weights[k + __builtin_ctz(found)];
    return 0;
  }
  // Computes codes from a step's inverse; returns the sums of their products with the weights and of their squares.
  std::pair<double, double> round(float inverse) {
    Sum products;
    Floats squares = zero();
    for (int64_t k = 0; k < whole; k += LANES) {
      Floats found = nearest(load(weights.get() + k) * all(inverse));
      found = least(most(found, all(-8.0f)), all(7.0f));
      store(steps.get() + k, found);
      products.add(weights.get() + k, steps.get() + k);
      squares = fma(found, found, squares);
    }
    return {products.total(), sum(squares)};
  }
  void keep() {
    for (int64_t k = 0; k < size; k += LANES)
      store_bytes(best.get() + k, to_ints(load(steps.get() + k) + all(8.0f)), size - k);
  }
};

// For given codes q, the scale w*q / q*q has the least error, which is w*w - (w*q)^2 / q*q. Returns it in bfloat16.
float round_group(Group& group) {
  double best = -1, scale = 0;
  float extreme = group.extreme();
  for (float end : ENDS) {
    float step = extreme / -end;
    auto [products, squares] = group.round(step != 0 ? 1 / step : 0);
    double found = squares > 0 ? products / squares : 0;
    if (found * products > best) best = found * products, scale = found, group.keep();
  }
  bf16 narrow[1];
  store(narrow, all(float(scale)), 1);
  return sum(load(narrow, 1));
}

}  // namespace

extern "C" {

// values [rows, size]; codes [rows, size], and scale [rows, groups].
void quire_quantize_groups(int type, const void* values, int64_t rows, int64_t size, int64_t group_size, uint8_t* codes,
                           float* scale) {
  int64_t groups = (size + group_size - 1) / group_size;
  with_type(type, [=](auto value) {
    parallel_for(rows, [=](int64_t row) {
      Group group(group_size);
      auto from = (const decltype(value)*)values + row * size;
      for (int64_t i = 0, k = 0; i < groups; ++i, k += group_size) {
        group.read(from + k, std::min(group_size, size - k));
        scale[row * groups + i] = round_group(group);
        std::copy(group.best.get(), group.best.get() + group.size, codes + row * size + k);
      }
    });
  });
}
}
