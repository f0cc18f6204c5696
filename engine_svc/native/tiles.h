// The shapes of AMX's matrix registers (tiles). instructions.py asks the system for permission to use them.
#pragma once

#ifdef __AMX_TILE__
#include <immintrin.h>

#include <cstdint>

namespace quire {

// Rows, and bytes of a row, of each of the eight tiles, in the processor's format. A kernel that uses tiles sets their
// shapes first, as other kernels of the same thread set others, and releases them (_tile_release) at the end.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t tile_rows, int64_t row_bytes) {
    rows[tile] = uint8_t(tile_rows);
    bytes[tile] = uint16_t(row_bytes);
  }
  void use() const {
    __asm__ volatile("" : : "r"(this) : "memory");  // the compiler may assume that only the first bytes are read
    _tile_loadconfig(this);
  }
};

// The compiler treats loads and stores of tiles as arithmetic. This fence makes it write its values to memory before tiles
// are loaded, and read memory again after tiles are stored.
inline void tile_fence() { __asm__ volatile("" ::: "memory"); }

// Stores a tile now and then during long multiplications, to no purpose but this: some processors (seen on family 6, model
// 167) take 800 cycles for the first store of a tile after about 2,000 cycles without one.
struct StayAwake {
  void store() { _tile_stored(7, line, 0); }

  alignas(64) char line[64];
};

// Sums in tiles 0 to 3, of rows `pitch` bytes apart: zeros if they are fresh.
template <class Total>
inline void load_sums(const Total* a, const Total* b, const Total* c, const Total* d, int64_t pitch, bool fresh) {
  if (fresh) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, a, pitch);
    _tile_loadd(1, b, pitch);
    _tile_loadd(2, c, pitch);
    _tile_loadd(3, d, pitch);
  }
}

template <class Total>
inline void store_sums(Total* a, Total* b, Total* c, Total* d, int64_t pitch) {
  _tile_stored(0, a, pitch);
  _tile_stored(1, b, pitch);
  _tile_stored(2, c, pitch);
  _tile_stored(3, d, pitch);
}

}  // namespace quire
#endif
