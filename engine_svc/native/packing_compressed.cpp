// Packs weights of bfloat16 in 12 bits each: see compressed.h.
#include <algorithm>
#include <atomic>
#include <memory>

#include "pack_panel.h"
#include "parallel.h"
#include "product.h"

using namespace quire;

namespace {

constexpr int64_t PLAIN_STEPS = 16;  // no more than one step in so many is left as it is
constexpr int MANTISSA = 7, SIGN_PLACE = 4, MANTISSA_PLACE = 5, WORD = 12;
constexpr int NUMBERS = 256;  // that an exponent may be

// The exponents that a panel's words tell apart: consecutive ones from the greatest down, of which the last may be zero's.
struct Exponents {
  int greatest;
  bool has_zero;

  int last() const { return EXPONENTS - 1 - has_zero; }  // of the consecutive ones
  uint16_t of(int code) const { return has_zero && code == EXPONENTS - 1 ? 0 : uint16_t(greatest - code); }
};

// Those that most of the values have.
Exponents choose(const uint16_t* values, int64_t count) {
  constexpr int AT_ONCE = 4;  // that do not wait for each other
  uint32_t found[AT_ONCE][NUMBERS] = {};
  for (int64_t i = 0; i < count; i += AT_ONCE)
    for (int j = 0; j < AT_ONCE; ++j) ++found[j][values[i + j] >> MANTISSA & (NUMBERS - 1)];
  int64_t before[NUMBERS + 1] = {};  // how many have lower ones
  for (int e = 0; e < NUMBERS; ++e)
    before[e + 1] = before[e] + found[0][e] + found[1][e] + found[2][e] + found[3][e];
  Exponents best{EXPONENTS - 1, false};
  int64_t most = -1;
  for (int greatest = EXPONENTS - 1; greatest < NUMBERS; ++greatest)
    for (bool has_zero : {false, true}) {
      Exponents those{greatest, has_zero};
      int64_t covered = before[greatest + 1] - before[greatest - those.last()] + (has_zero ? before[1] : 0);
      if (covered > most) most = covered, best = those;
    }
  return best;
}

// A step's values as words. False: they have other exponents. Conditions are masks, for loops of vectors.
bool compress_step(const uint16_t* values, Exponents exponents, uint16_t* to) {
  uint16_t words[STEP_VALUES], greatest = uint16_t(exponents.greatest), last = uint16_t(exponents.last());
  uint16_t zeros = exponents.has_zero ? UINT16_MAX : 0, others = 0;
  for (int64_t i = 0; i < STEP_VALUES; ++i) {
    uint16_t value = values[i], exponent = uint16_t(value << 1) >> (MANTISSA + 1), code = uint16_t(greatest - exponent);
    uint16_t is_zero = exponent ? 0 : zeros, is_other = code > last ? UINT16_MAX : 0;
    others |= uint16_t(is_other & ~is_zero);
    code = uint16_t((code & ~is_zero) | (is_zero & (EXPONENTS - 1)));
    uint16_t mantissa = uint16_t(value << (16 - MANTISSA)) >> (16 - MANTISSA), sign = value >> 15;
    words[i] = uint16_t(mantissa << MANTISSA_PLACE) | uint16_t(sign << SIGN_PLACE) | uint16_t(code & (EXPONENTS - 1));
  }
  constexpr int64_t OF_ONE = STEP_VALUES / VECTORS;
  const uint16_t* split = words + PACKED_REGISTERS * OF_ONE;
  for (int v = 0; v < PACKED_REGISTERS; ++v)
    for (int64_t i = 0; i < OF_ONE; ++i)
      to[v * OF_ONE + i] = words[v * OF_ONE + i] | uint16_t(uint16_t(split[i] >> 4 * v) << WORD);
  return !others;
}

// Where plain steps go, behind all panels, as far as there is room.
class PlainSteps {
 public:
  PlainSteps(int64_t begin, int64_t end) : next(begin), end(end) {}

  // Room for the numbers and values of so many, or -1.
  int64_t take(int64_t count) {
    int64_t bytes = numbers_bytes(count) + count * PLAIN_STEP, place = next.fetch_add(bytes);
    return place + bytes <= end ? place : -1;
  }
  // Where what has been taken ends; 0: there was more than there is room for.
  int64_t used() const { return next <= end ? next.load() : 0; }

 private:
  std::atomic<int64_t> next;
  const int64_t end;
};

// A packed panel. What there is no room for is left out, which the caller sees.
void compress_panel(const uint16_t* values, int64_t steps, PlainSteps& plain, char* matrix, char* to) {
  Exponents exponents = choose(values, steps * STEP_VALUES);
  auto head = (CompressedHead*)to;
  for (int code = 0; code < EXPONENTS; ++code)
    for (int sign = 0; sign < 2; ++sign)
      head->table[sign << SIGN_PLACE | code] = uint16_t(sign << 15 | exponents.of(code) << MANTISSA);
  std::unique_ptr<int32_t[]> numbers(new int32_t[steps]);
  int64_t count = 0;
  for (int64_t k = 0; k < steps; ++k) {
    auto words = (uint16_t*)(to + compressed_panel_bytes(k));
    if (!compress_step(values + k * STEP_VALUES, exponents, words)) numbers[count++] = int32_t(k);
  }
  int64_t place = plain.take(count);
  if (place < 0) return;
  head->plain = place, head->count = count;
  std::memcpy(matrix + place, numbers.get(), count * sizeof(int32_t));
  char* step = matrix + place + numbers_bytes(count);
  for (int64_t i = 0; i < count; ++i) std::memcpy(step + i * PLAIN_STEP, values + numbers[i] * STEP_VALUES, PLAIN_STEP);
}

int64_t panels_bytes(int64_t outputs, int64_t steps) { return panels_of(outputs) * compressed_panel_bytes(steps); }

}  // namespace

extern "C" {

// Bytes that a compressed weight has at most; 0 where this level has none.
int64_t quire_compressed_bytes(int64_t outputs, int64_t size) {
  if (!COMPRESSES<Bf16Groups>) return 0;
  int64_t steps = steps_of<Bf16Groups>(size), panels = panels_of(outputs);
  return panels_bytes(outputs, steps) + panels * (steps / PLAIN_STEPS * PLAIN_STEP + LINE);
}

// weight [outputs, size] of bfloat16. Returns the bytes that it has, or 0: its exponents are too many.
int64_t quire_compress(const void* weight, int64_t outputs, int64_t size, char* to) {
  int64_t steps = steps_of<Bf16Groups>(size);
  PlainSteps plain(panels_bytes(outputs, steps), quire_compressed_bytes(outputs, size));
  parallel_for(panels_of(outputs), [&](int64_t index) {
    std::unique_ptr<bf16[]> panel(new bf16[steps * STEP_VALUES]);
    pack_panel<Bf16Groups>((const bf16*)weight + index * PANEL * size, std::min<int64_t>(PANEL, outputs - index * PANEL),
                           size, panel.get());
    compress_panel((const uint16_t*)panel.get(), steps, plain, to, to + index * compressed_panel_bytes(steps));
  });
  return plain.used();
}
}
