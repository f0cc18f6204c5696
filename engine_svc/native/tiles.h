// The matrix registers of AMX: which shapes they have. levels.py asks the system for them.
#pragma once

#ifdef __AMX_TILE__
#include <immintrin.h>

#include <cstdint>

namespace quire {

// Rows, and bytes of a row, of each of the eight; as the processor reads them. Whoever computes with tiles sets their
// shapes first, for other kernels of the same thread set others, and lets go of them (_tile_release) at the end.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t tile_rows, int64_t row_bytes) {
    rows[tile] = uint8_t(tile_rows);
    bytes[tile] = uint16_t(row_bytes);
  }
  void use() const {
    __asm__ volatile("" : : "r"(this) : "memory");  // a compiler may think that only the first bytes of it are read
    _tile_loadconfig(this);
  }
};

// The compiler takes loads and stores of tiles for arithmetic: what it wrote has to be in memory before the first, and
// what it reads after the last is not what it knows.
inline void tile_fence() { __asm__ volatile("" ::: "memory"); }

}  // namespace quire
#endif
