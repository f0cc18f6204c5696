// Chooses a token's experts and their weights.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "parallel.h"
#include "recordable.h"

namespace {

constexpr int64_t WORTH_A_THREAD = 1 << 13;  // scores
enum Scoring { SOFTMAX, SIGMOID, SPARSEMIXER, SQRT_SOFTPLUS, SIGMOID_BIASED_LOGITS };  // as the caller numbers them
constexpr float NEVER = -std::numeric_limits<float>::infinity();

// Takes the `count` best of scores [size], the best first, and of equal scores the first. Both are small, so without sorting.
template <class Take>
void take_best(const float* scores, int64_t size, int64_t count, const Take& take) {
  std::vector<char> taken(size);
  for (; count > 0; --count) {
    int64_t best = -1;
    for (int64_t i = 0; i < size; ++i)
      if (!taken[i] && (best < 0 || scores[i] > scores[best])) best = i;
    taken[best] = true;
    take(best);
  }
}

void softmax(std::vector<float>& values) {
  float greatest = *std::max_element(values.begin(), values.end()), sum = 0;
  for (float& value : values) sum += value = std::exp(value - greatest);
  for (float& value : values) value /= sum;
}

// Sets experts outside of the best `chosen` groups to minus infinity; groups rank by the sum of their `judges` best experts.
void keep_best_groups(std::vector<float>& scores, int64_t groups, int64_t chosen, int64_t judges) {
  int64_t size = scores.size() / groups;
  std::vector<float> sums(groups, 0.0f), kept(scores.size(), NEVER);
  for (int64_t group = 0; group < groups; ++group) {
    const float* members = scores.data() + group * size;
    take_best(members, size, judges, [&](int64_t best) { sums[group] += members[best]; });
  }
  take_best(sums.data(), groups, chosen, [&](int64_t group) {
    std::copy_n(scores.begin() + group * size, size, kept.begin() + group * size);
  });
  scores = kept;
}

// The weight of the best of the experts that are `left`: its part of a softmax over those of them that are near it.
float part_of_near(const float* logits, const std::vector<float>& left, int64_t best, float near) {
  float sum = 0;
  for (size_t i = 0; i < left.size(); ++i)
    if (left[i] > NEVER && left[best] - logits[i] <= near * std::max(std::abs(logits[i]), left[best]))
      sum += std::exp(logits[i] - left[best]);
  return 1 / sum;
}

// Chooses experts one after the other (sparsemixer).
void mix_sparsely(const float* logits, int64_t experts, int64_t chosen, float near, float* weights, int64_t* ids) {
  std::vector<float> left(logits, logits + experts);
  take_best(logits, experts, chosen, [&](int64_t best) {
    *ids++ = best;
    *weights++ = part_of_near(logits, left, best, near);
    left[best] = NEVER;
  });
}

}  // namespace

extern "C" {

// logits [tokens, experts] to weights and ids [tokens, chosen]. A bias [experts], if there is one, is added to scores, or to
// logits, for choosing, but not to weights. Factors [experts], if there are any, multiply the chosen experts' weights.
void quire_choose_experts(const float* logits, const float* bias, const float* factors, int64_t tokens, int64_t experts,
                          int64_t chosen, int64_t groups, int64_t chosen_groups, int renormalize, float scale, int scoring,
                          float near, float* weights, int64_t* ids) {
  auto score = [=](int64_t token, float* weight, int64_t* id) {
    // All scorings grow with the logits, and logits still differ where scores have saturated at 0 or 1.
    std::vector<float> ranked(logits + token * experts, logits + (token + 1) * experts), scores = ranked;
    if (scoring == SOFTMAX)
      softmax(scores);
    else if (scoring == SQRT_SOFTPLUS)
      for (float& score : scores) score = std::sqrt(std::max(score, 0.0f) + std::log1p(std::exp(-std::abs(score))));
    else
      for (float& score : scores) score = 1 / (1 + std::exp(-score));
    if (bias && scoring != SIGMOID_BIASED_LOGITS) ranked = scores;
    for (int64_t i = 0; bias && i < experts; ++i) ranked[i] += bias[i];
    if (groups > 1) keep_best_groups(ranked, groups, chosen_groups, bias ? 2 : 1);
    float sum = 0;
    int64_t count = 0;
    take_best(ranked.data(), experts, chosen, [&](int64_t best) {
      id[count] = best;
      sum += weight[count++] = scores[best];
    });
    for (int64_t i = 0; i < chosen; ++i) weight[i] *= renormalize ? scale / sum : scale;
  };
  quire::parallel_for(tokens, tokens * experts > WORTH_A_THREAD, [=](int64_t token) {
    float* weight = weights + token * chosen;
    int64_t* id = ids + token * chosen;
    if (scoring == SPARSEMIXER)
      mix_sparsely(logits + token * experts, experts, chosen, near, weight, id);
    else
      score(token, weight, id);
    for (int64_t i = 0; factors && i < chosen; ++i) weight[i] *= factors[id[i]];
  });
}
}

RECORDABLE(choose_experts)
