// Pooling of the hidden states of whole sequences.
#include "parallel.h"
#include "types.h"

using namespace quire;

namespace {

constexpr int64_t WORTH_A_THREAD = 1 << 15;  // values
constexpr int AT_ONCE = 4;                   // vectors whose sums are in registers

// The mean of `count` rows, `stride` values apart, of `width` values each: LANES * VECTORS, or fewer of one vector.
template <int VECTORS, class Value>
void mean_of(const Value* rows, int64_t count, int64_t stride, int64_t width, float* to) {
  Floats sums[VECTORS];
  for (Floats& each : sums) each = zero();
  for (int64_t row = 0; row < count; ++row, rows += stride)
    for (int i = 0; i < VECTORS; ++i) sums[i] = sums[i] + load(rows + i * LANES, width - i * LANES);
  for (int i = 0; i < VECTORS; ++i) store(to + i * LANES, sums[i] * all(1.0f / float(count)), width - i * LANES);
}

}  // namespace

// The mean of rows starts[i] to starts[i + 1] (at least one) of a matrix [rows, size], for each i: output [count, size].
extern "C" void quire_mean_rows(int type, const void* matrix, int64_t size, const int32_t* starts, int64_t count,
                                float* output) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    parallel_for(count, starts[count] * size > WORTH_A_THREAD, [=](int64_t i) {
      const Value* rows = (const Value*)matrix + starts[i] * size;
      int64_t number = starts[i + 1] - starts[i], at = 0;
      float* to = output + i * size;
      for (; size - at >= LANES * AT_ONCE; at += LANES * AT_ONCE)
        mean_of<AT_ONCE>(rows + at, number, size, LANES * AT_ONCE, to + at);
      for (; at < size; at += LANES) mean_of<1>(rows + at, number, size, size - at, to + at);
    });
  });
}
