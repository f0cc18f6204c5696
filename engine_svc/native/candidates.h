// The likeliest tokens of a row, and how far down from the likeliest a number or mass of tokens is reached.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "vector.h"

namespace quire {

// Integer keys in the order of the numbers; 0 and -0 have the same key.
inline uint32_t key_of(float logit) {
  float value = logit + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// exp((logits - greatest) / temperature); 0 where the result would be too small for a normal float32.
inline Floats weights_of(Floats logits, float greatest, float inverse_temperature) {
  Floats x = (logits - all(greatest)) * all(inverse_temperature);
  return select(at_least(x, all(-87.0f)), exponential(x), zero());
}

// A depth: includes all tokens with a greater key, and the first `ties` tokens with this key.
struct Depth {
  uint32_t key;
  int64_t ties;
  double amount;  // number or mass of all included tokens
};

// Tokens in the order of their ids.
struct Candidates {
  std::vector<int32_t> ids;
  std::vector<uint32_t> keys;
  std::vector<float> logits, weights;

  void clear() { ids.clear(), keys.clear(), logits.clear(), weights.clear(); }

  void add(int64_t id, float logit) {
    ids.push_back(int32_t(id));
    logits.push_back(logit);
    keys.push_back(key_of(logit));
  }

  void weigh(float greatest, float inverse_temperature) {
    weights.resize(ids.size());
    int64_t count = ids.size();
    for (int64_t i = 0; i < count; i += LANES)
      store(&weights[i], weights_of(load(&logits[i], count - i), greatest, inverse_temperature), count - i);
  }

  template <class Keeps>
  void keep_if(const Keeps& keeps) {
    size_t count = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[count] = ids[i], keys[count] = keys[i], logits[count] = logits[i], weights[count] = weights[i];
      count += keeps(keys[count], weights[count]);
    }
    ids.resize(count), keys.resize(count), logits.resize(count), weights.resize(count);
  }

  void keep(Depth depth) {
    int64_t ties = depth.ties;
    keep_if([&](uint32_t key, float) { return key > depth.key || (key == depth.key && ties-- > 0); });
  }

  double mass() const {
    double found = 0;
    for (float weight : weights) found += weight;
    return found;
  }

  // The least depth at which the number of tokens (or their mass) reaches `limit`; the depth of all tokens if it never
  // does. Found by the bytes of the keys, the highest first, without sorting.
  Depth reach(double limit, bool by_mass) const {
    Depth depth{0, 0, 0};
    for (int shift = 24; shift >= 0; shift -= 8) descend(depth, shift, limit, by_mass);
    int64_t ties = 0;
    double one = 1;
    for (size_t i = 0; i < keys.size(); ++i)
      if (keys[i] == depth.key) ++ties, one = by_mass ? weights[i] : 1;
    double needed = std::ceil((limit - depth.amount) / one);
    depth.ties = int64_t(std::min(std::max(needed, 1.0), double(ties)));
    depth.amount += double(depth.ties) * one;
    return depth;
  }

 private:
  // Extends depth.key by one more byte; `amount` is the number or mass of tokens above the keys that begin with it.
  void descend(Depth& depth, int shift, double limit, bool by_mass) const {
    double amounts[256] = {};
    for (size_t i = 0; i < keys.size(); ++i)
      if (shift == 24 || keys[i] >> (shift + 8) == depth.key) amounts[keys[i] >> shift & 255] += by_mass ? weights[i] : 1;
    int chosen = 0;
    bool found = false;
    for (int bin = 255; bin >= 0 && !(found && depth.amount + amounts[chosen] >= limit); --bin) {
      if (amounts[bin] == 0) continue;
      if (found) depth.amount += amounts[chosen];
      chosen = bin;
      found = true;
    }
    depth.key = depth.key << 8 | uint32_t(chosen);
  }
};

}  // namespace quire
