// Packs coded weights: see coded.h, coded_amx.h and coded_pairs.h.
#include "codes.h"
#include "parallel.h"
#include "product.h"

using namespace quire;

namespace {

// The source of packing: codes [outputs, size], scales and offsets [outputs, spans] of the form's types.
struct Source {
  const uint8_t* codes;
  int64_t outputs, size;
  const char *scale, *offset;
};

// Packs a chunk's scales of `width` bytes each, of `rows` outputs from `first` on; zeros for the rest. Returns their end.
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

// The number of bytes of a packed weight.
int64_t quire_packed_coded_bytes(const Packed* packed, int64_t outputs, int64_t size) {
  return panels_of(outputs) * chunks_of(size) * packed->form.chunk_bytes();
}

// Packs for inputs of a type: codes [outputs, size]; scale and offset [outputs, spans, filled up to whole chunks], of the
// types in the form.
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
}
