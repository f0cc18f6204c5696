// The places of codes in a chunk; see coded.h, coded_amx.h and coded_pairs.h.
#pragma once

#include "coded.h"

namespace quire {

inline int64_t chunks_of(int64_t size) { return (size + CHUNK - 1) / CHUNK; }

constexpr int64_t HALF = PANEL / 2;  // outputs

// The place in a chunk of the 8-bit code of a panel's n-th output and the k-th input.
template <bool TILES>
inline int64_t place_of(const CodedForm& form, int64_t n, int64_t k) {
  if (TILES && form.codes == INT8_CODES) return n / HALF * CHUNK * HALF + n % HALF * 2 + k / 2 * PANEL + k % 2;
  if (TILES && form.codes == E4M3_TABLES) return n * CHUNK + k / 64 * 64 + k % 32 * 2 + k / 32 % 2;
  return TILES ? n * CHUNK + k : k * PANEL + n;
}

// The bits that differ between a code and the stored byte.
template <bool TILES>
inline uint8_t sign_of(const CodedForm& form) {
  return !TILES && form.codes == INT8_CODES ? 0x80 : 0;
}

// The bit position of the i-th of eight codes in 32 bits.
inline int bit_of(int64_t i) { return int(i / 2 * 4 + i % 2 * 16); }

// Packs the codes [CHUNK] of a panel's n-th output. 8-bit codes become the bytes of numbers.
template <bool TILES>
inline void pack_codes(const uint8_t* from, const CodedForm& form, int64_t n, char* to) {
  if (form.codes != NIBBLES) {
    uint8_t sign = sign_of<TILES>(form);
    for (int64_t k = 0; k < CHUNK; ++k) to[place_of<TILES>(form, n, k)] = char(from[k] ^ sign);
  } else if (TILES) {
    auto words = (uint16_t*)(to + n * CHUNK / 2);
    for (int64_t k = 0; k < 32; ++k)
      words[k] = uint16_t(from[k] | from[k + 32] << 4 | from[k + 64] << 8 | from[k + 96] << 12);
  } else {
    for (int64_t k = 0; k < CHUNK; k += 8) {
      uint32_t eight = 0;
      for (int i = 0; i < 8; ++i) eight |= uint32_t(from[k + i]) << bit_of(i);
      ((uint32_t*)to)[k / 8 * PANEL + n] = eight;
    }
  }
}

// The inverse of pack_codes.
template <bool TILES>
inline void unpack_codes(const char* from, const CodedForm& form, int64_t n, uint8_t* codes) {
  if (form.codes != NIBBLES) {
    uint8_t sign = sign_of<TILES>(form);
    for (int64_t k = 0; k < CHUNK; ++k) codes[k] = uint8_t(from[place_of<TILES>(form, n, k)]) ^ sign;
  } else if (TILES) {
    auto words = (const uint16_t*)(from + n * CHUNK / 2);
    for (int64_t k = 0; k < CHUNK; ++k) codes[k] = words[k % 32] >> k / 32 * 4 & 15;
  } else {
    for (int64_t k = 0; k < CHUNK; ++k) codes[k] = ((const uint32_t*)from)[k / 8 * PANEL + n] >> bit_of(k % 8) & 15;
  }
}

}  // namespace quire
