// Packs coded weights: see coded.h, coded_amx.h and coded_pairs.h.
#include <cmath>

#include "parallel.h"
#include "product.h"
#include "recordable.h"

using namespace quire;

namespace {

// What is packed: codes [outputs, size], scales and offsets [outputs, spans] of the form's types.
struct Source {
  const uint8_t* codes;
  int64_t outputs, size;
  const char *scale, *offset;
};

int64_t chunks_of(int64_t size) { return (size + CHUNK - 1) / CHUNK; }

// A chunk's scales of `width` bytes each, of `rows` outputs from `first` on; zeros for others. Returns where they end.
char* pack_scales(const char* from, const CodedForm& form, int64_t width, int64_t first, int64_t rows, int64_t chunk,
                  int64_t chunks, char* to) {
  int64_t spans = CHUNK / form.span;
  for (int64_t span = 0; span < spans; ++span)
    for (int64_t n = 0; n < PANEL; ++n, to += width) {
      const char* one = from + (((first + n) * chunks + chunk) * spans + span) * width;
      n < rows ? std::memcpy(to, one, width) : std::memset(to, 0, width);
    }
  return to;
}

constexpr int64_t HALF = PANEL / 2;  // outputs
constexpr int64_t WORTH_A_THREAD = 1 << 15;  // numbers

// Where a chunk has the code of 8 bits of the n-th output of a panel and the k-th input.
template <bool TILES>
int64_t place_of(const CodedForm& form, int64_t n, int64_t k) {
  if (TILES && form.codes == INT8_CODES) return n / HALF * CHUNK * HALF + n % HALF * 2 + k / 2 * PANEL + k % 2;
  if (TILES && form.codes == E4M3_TABLES) return n * CHUNK + k / 64 * 64 + k % 32 * 2 + k / 32 % 2;
  return TILES ? n * CHUNK + k : k * PANEL + n;
}

// What bytes of numbers have that codes have not.
template <bool TILES>
uint8_t sign_of(const CodedForm& form) {
  return !TILES && form.codes == INT8_CODES ? 0x80 : 0;
}

// Codes [CHUNK] of one output, where the n-th of a panel has its place. Those of 8 bits become the bytes of numbers.
template <bool TILES>
void pack_codes(const uint8_t* from, const CodedForm& form, int64_t n, char* to) {
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
      for (int i = 0; i < 8; ++i) eight |= uint32_t(from[k + i]) << 4 * i;
      ((uint32_t*)to)[k / 8 * PANEL + n] = eight;
    }
  }
}

// The other way round.
template <bool TILES>
void unpack_codes(const char* from, const CodedForm& form, int64_t n, uint8_t* codes) {
  if (form.codes != NIBBLES) {
    uint8_t sign = sign_of<TILES>(form);
    for (int64_t k = 0; k < CHUNK; ++k) codes[k] = uint8_t(from[place_of<TILES>(form, n, k)]) ^ sign;
  } else if (TILES) {
    auto words = (const uint16_t*)(from + n * CHUNK / 2);
    for (int64_t k = 0; k < CHUNK; ++k) codes[k] = words[k % 32] >> k / 32 * 4 & 15;
  } else {
    for (int64_t k = 0; k < CHUNK; ++k) codes[k] = ((const uint32_t*)from)[k / 8 * PANEL + n] >> k % 8 * 4 & 15;
  }
}

// What the codes of a panel's n-th output stand for, [size], times a factor.
template <class Value>
void widen_row(const char* chunk, const CodedForm& form, int64_t n, int64_t size, float factor, Value* to) {
  bool raised = form.codes == E4M3_CODES || form.codes == E4M3_TABLES;  // as scales are, the other way round
  Scales scales(form);
  for (int64_t begin = 0; begin < size; begin += CHUNK, chunk += form.chunk_bytes()) {
    uint8_t codes[CHUNK];
    float numbers[CHUNK];
    unpack_codes<CodedGroups<Value>::TILES>(scales.read(chunk), form, n, codes);
    for (int64_t k = 0; k < CHUNK; ++k) {
      float number = form.grid[codes[k]] * (raised ? 1.0f / 256 : 1.0f);
      numbers[k] = std::fma(number, scales.scale[k / form.span][n], scales.offset[k / form.span][n]);
    }
    int64_t there = std::min(CHUNK, size - begin);
    for (int64_t k = 0; k < there; k += LANES) {
      Value* place = to + begin + k;
      store(place, load(numbers + k), there - k);
      if (factor != 1) store(place, load(place, there - k) * all(factor), there - k);
    }
  }
}

template <class Type>
void pack_panel(const Source& from, const CodedForm& form, int64_t first, char* to) {
  int64_t chunks = chunks_of(from.size), rows = std::min<int64_t>(PANEL, from.outputs - first);
  for (int64_t chunk = 0; chunk < chunks; ++chunk, to += form.code_bytes()) {
    to = pack_scales(from.scale, form, form.scale_width(form.scale_type), first, rows, chunk, chunks, to);
    to = pack_scales(from.offset, form, form.scale_width(form.offset_type), first, rows, chunk, chunks, to);
    int64_t there = std::min(CHUNK, from.size - chunk * CHUNK);
    for (int64_t n = 0; n < PANEL; ++n) {
      uint8_t codes[CHUNK];
      std::memset(codes, form.codes == INT8_CODES ? 0x80 : 0, CHUNK);
      if (n < rows) std::memcpy(codes, from.codes + (first + n) * from.size + chunk * CHUNK, there);
      pack_codes<Type::TILES>(codes, form, n, to);
    }
  }
}

}  // namespace

extern "C" {

// Bytes of a weight when it is packed.
int64_t quire_packed_coded_bytes(const Packed* packed, int64_t outputs, int64_t size) {
  return panels_of(outputs) * chunks_of(size) * packed->form.chunk_bytes();
}

// For inputs of a type: codes [outputs, size]; scale and offset [outputs, spans that there are in whole chunks], of the
// types that the form says.
void quire_pack_coded(int type, const Packed* packed, const uint8_t* codes, int64_t outputs, int64_t size,
                      const void* scale, const void* offset, char* to) {
  const CodedForm& form = packed->form;
  Source source{codes, outputs, size, (const char*)scale, (const char*)offset};
  with_type(type, [&](auto value) {
    parallel_for(panels_of(outputs), [&](int64_t index) {
      pack_panel<CodedGroups<decltype(value)>>(source, form, index * PANEL,
                                               to + index * chunks_of(size) * form.chunk_bytes());
    });
  });
}

// output [count, size] of a packed weight [outputs, size] whose first row has the number `first`: rows of what its codes
// stand for, rounded, times a factor; zeros for those that it does not have.
void quire_coded_rows(int type, const Packed* packed, int64_t outputs, int64_t size, const int64_t* indices,
                      int64_t count, int64_t first, float factor, void* output) {
  const CodedForm& form = packed->form;
  int64_t panel_bytes = chunks_of(size) * form.chunk_bytes();
  with_type(type, [=, &form](auto value) {
    using Value = decltype(value);
    parallel_for(count, count * size > WORTH_A_THREAD, [=, &form](int64_t i) {
      int64_t index = indices[i] - first;
      Value* to = (Value*)output + i * size;
      if (index < 0 || index >= outputs) return void(std::fill_n(to, size, Value{}));
      widen_row((const char*)packed->weight + index / PANEL * panel_bytes, form, index % PANEL, size, factor, to);
    });
  });
}
}

RECORDABLE(coded_rows)
