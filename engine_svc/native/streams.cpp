// Weights by which the streams of hyper-connections are mixed.
#include <algorithm>
#include <cmath>

#include "parallel.h"
#include "recordable.h"

namespace {

constexpr int64_t WORTH_A_THREAD = 1 << 9;  // weights, each of which takes some hundred operations

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// Divides each of `count` lines of `count` values by its sum; `step` is from one value of a line to the next.
void normalize(float* weights, int64_t count, int64_t line, int64_t step, float epsilon) {
  for (int64_t i = 0; i < count; ++i) {
    float* values = weights + i * line;
    float sum = epsilon;
    for (int64_t j = 0; j < count; ++j) sum += values[j * step];
    for (int64_t j = 0; j < count; ++j) values[j * step] /= sum;
  }
}

void softmax(float* values, int64_t count) {
  float greatest = *std::max_element(values, values + count), sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += values[i] = std::exp(values[i] - greatest);
  for (int64_t i = 0; i < count; ++i) values[i] /= sum;
}

// A token's scores, to weights: of streams in the part's input, of its output in each stream, of streams in new ones.
void weigh(float* scores, int64_t count, int64_t iterations, float epsilon) {
  for (int64_t i = 0; i < count; ++i) scores[i] = sigmoid(scores[i]) + epsilon;
  for (int64_t i = count; i < 2 * count; ++i) scores[i] = 2 * sigmoid(scores[i]);
  float* kept = scores + 2 * count;
  for (int64_t i = 0; i < count; ++i) {
    softmax(kept + i * count, count);
    for (int64_t j = 0; j < count; ++j) kept[i * count + j] += epsilon;
  }
  normalize(kept, count, 1, count, epsilon);
  for (int64_t iteration = 1; iteration < iterations; ++iteration) {
    normalize(kept, count, count, 1, epsilon);
    normalize(kept, count, 1, count, epsilon);
  }
}

}  // namespace

extern "C" {

// scores [tokens, count * (2 + count)], in place.
void quire_stream_weights(float* scores, int64_t tokens, int64_t count, int64_t iterations, float epsilon) {
  int64_t size = count * (2 + count);
  quire::parallel_for(tokens, tokens * size > WORTH_A_THREAD,
                      [=](int64_t token) { weigh(scores + token * size, count, iterations, epsilon); });
}
}

RECORDABLE(stream_weights)
