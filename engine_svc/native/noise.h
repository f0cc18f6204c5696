// Random numbers that depend only on a seed, a position and a token; the same as those of engine_svc/sampling/noise.py.
#pragma once

#include <cmath>
#include <cstdint>

namespace quire {

// A row's keys by Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011) with the seed as key and the position as counter.
struct Noise {
  uint32_t first, second;

  Noise(uint64_t seed, uint64_t position) {
    uint32_t keys[2] = {uint32_t(seed), uint32_t(seed >> 32)};
    uint32_t words[4] = {uint32_t(position), uint32_t(position >> 32), 0, 0};
    for (int round = 0; round < 10; ++round) {
      uint64_t one = uint64_t(words[0]) * 0xD2511F53u, other = uint64_t(words[2]) * 0xCD9E8D57u;
      words[0] = uint32_t(other >> 32) ^ words[1] ^ keys[0];
      words[1] = uint32_t(other);
      words[2] = uint32_t(one >> 32) ^ words[3] ^ keys[1];
      words[3] = uint32_t(one);
      keys[0] += 0x9E3779B9u;
      keys[1] += 0xBB67AE85u;
    }
    first = words[0], second = words[1];
  }

  // A token's 32 random bits: `triple32` of Wellons' hash-prospector (2018), with a key added before each half.
  uint32_t word(uint32_t token) const {
    uint32_t x = token + first;
    x = (x ^ x >> 17) * 0xED5AD4BBu;
    x = ((x ^ x >> 11) + second) * 0xAC4C1B51u;
    x = (x ^ x >> 15) * 0x31848BABu;
    return x ^ x >> 14;
  }
};

constexpr double WORDS = 4294967296.0;  // 2^32

// The exponentially distributed number that a word stands for; never less than word / 2^32.
inline double exponential_of(uint32_t word) { return -std::log1p((word + 0.5) / -WORDS); }

}  // namespace quire
