// Noise that depends on a seed and a position alone; the same numbers as engine_svc/sampling/noise.py.
#pragma once

#include <cstdint>

namespace quire {

// One number in [0, 1), of Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011): the seed is its key, the position its
// counter.
inline double uniform(uint64_t seed, uint64_t position) {
  uint32_t keys[2] = {uint32_t(seed), uint32_t(seed >> 32)};
  uint32_t words[4] = {uint32_t(position), uint32_t(position >> 32), 0, 0};
  for (int round = 0; round < 10; ++round) {
    uint64_t first = uint64_t(words[0]) * 0xD2511F53u, second = uint64_t(words[2]) * 0xCD9E8D57u;
    words[0] = uint32_t(second >> 32) ^ words[1] ^ keys[0];
    words[1] = uint32_t(second);
    words[2] = uint32_t(first >> 32) ^ words[3] ^ keys[1];
    words[3] = uint32_t(first);
    keys[0] += 0x9E3779B9u;
    keys[1] += 0xBB67AE85u;
  }
  uint64_t bits = (uint64_t(words[0]) << 32 | words[1]) >> 11;
  return double(bits) * (1.0 / 9007199254740992.0);  // 2^-53
}

}  // namespace quire
