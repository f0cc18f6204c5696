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

// Whoever multiplies for long stores a tile now and then, for nothing: some processors (seen on family 6, model 167) take
// 800 cycles for the first store of a tile after some 2,000 cycles without one.
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
