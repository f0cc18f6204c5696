// Compresses bfloat16 weights to 12 bits each; see compressed.h.
#include <algorithm>
#include <atomic>
#include <memory>

#include "pack_panel.h"
#include "parallel.h"
#include "product.h"

using namespace quire;

namespace {

constexpr int64_t PLAIN_STEPS = 16;  // at most one step in this many may remain uncompressed
constexpr int64_t SAMPLED = 4;
constexpr int NUMBERS = 256;  // number of possible exponents
constexpr uint16_t FREE_BITS = 0x7800;  // unused bits of a word

// The least exponent of the range that most values are in. Counts only every SAMPLED-th step, as counting all would take
// nearly as long as the rest.
int choose(const uint16_t* values, int64_t steps) {
  constexpr int AT_ONCE = 4;  // independent counters
  uint32_t found[AT_ONCE][NUMBERS] = {};
  for (int64_t k = 0; k < steps; k += SAMPLED)
    for (int64_t i = k * STEP_VALUES; i < (k + 1) * STEP_VALUES; i += AT_ONCE)
      for (int j = 0; j < AT_ONCE; ++j) ++found[j][values[i + j] >> MANTISSA & (NUMBERS - 1)];
  int64_t before[NUMBERS + 1] = {}, most = -1;  // before: how many values have lower exponents
  for (int e = 0; e < NUMBERS; ++e)
    before[e + 1] = before[e] + found[0][e] + found[1][e] + found[2][e] + found[3][e];
  int best = 0;
  for (int least = 0; least + EXPONENTS <= NUMBERS; ++least) {
    int64_t covered = before[least + EXPONENTS] - before[least];
    if (covered > most) most = covered, best = least;
  }
  return best;
}

// Compresses a step's values to words; false if any exponent is out of range.
bool compress_step(const uint16_t* values, int least, uint16_t* to) {
  constexpr int64_t OF_ONE = STEP_VALUES / VECTORS;
  uint16_t words[STEP_VALUES], others = 0;
  for (int64_t i = 0; i < STEP_VALUES; ++i) {
    words[i] = uint16_t(values[i] - (least << MANTISSA));
    others |= words[i] & FREE_BITS;
  }
  const uint16_t* split = words + PACKED_REGISTERS * OF_ONE;
  for (int64_t i = 0; i < OF_ONE; ++i) {
    to[i] = words[i] | (uint16_t(split[i] << 4) & FREE_BITS);
    to[OF_ONE + i] = words[OF_ONE + i] | (uint16_t(split[i] << 8) & FREE_BITS);
    to[2 * OF_ONE + i] = words[2 * OF_ONE + i] | (split[i] >> 1 & 0x4000) | (uint16_t(split[i] << 11) & 0x3800);
  }
  return !others;
}

// Allocates room for plain steps after all panels.
class PlainSteps {
 public:
  PlainSteps(int64_t begin, int64_t end) : next(begin), end(end) {}

  // The offset of room for the numbers and values of `count` steps, or -1 if there is none.
  int64_t take(int64_t count) {
    int64_t bytes = numbers_bytes(count) + count * PLAIN_STEP, place = next.fetch_add(bytes);
    return place + bytes <= end ? place : -1;
  }
  // The end of the allocated room; 0 if there was not enough.
  int64_t used() const { return next <= end ? next.load() : 0; }

 private:
  std::atomic<int64_t> next;
  const int64_t end;
};

// Compresses a packed panel. Steps that there is no room for are left out; the caller checks for this.
void compress_panel(const uint16_t* values, int64_t steps, PlainSteps& plain, char* matrix, char* to) {
  int least = choose(values, steps);
  auto head = (CompressedHead*)to;
  head->least = least;
  std::unique_ptr<int32_t[]> numbers(new int32_t[steps]);
  int64_t count = 0;
  for (int64_t k = 0; k < steps; ++k) {
    auto words = (uint16_t*)(to + sizeof(CompressedHead) + k * COMPRESSED_STEP);
    if (!compress_step(values + k * STEP_VALUES, least, words)) numbers[count++] = int32_t(k);
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

// The most bytes that a compressed weight can have; 0 if this level does not support compressed weights.
int64_t quire_compressed_bytes(int64_t outputs, int64_t size) {
  if (!COMPRESSES<Bf16Groups>) return 0;
  int64_t steps = steps_of<Bf16Groups>(size), panels = panels_of(outputs);
  return panels_bytes(outputs, steps) + panels * (steps / PLAIN_STEPS * PLAIN_STEP + LINE);
}

// Compresses bfloat16 weight [outputs, size]. Returns its number of bytes, or 0 if it has too many exponents.
int64_t quire_compress(const void* weight, int64_t outputs, int64_t size, char* to) {
  int64_t steps = steps_of<Bf16Groups>(size);
  PlainSteps plain(panels_bytes(outputs, steps), quire_compressed_bytes(outputs, size));
  parallel_for(panels_of(outputs), [&](int64_t index) {
    struct Group {
      bf16 values[Bf16Groups::GROUP];
    };
    std::unique_ptr<Group[]> panel(new Group[steps * PANEL]);
    int64_t rows = std::min<int64_t>(PANEL, outputs - index * PANEL);
    pack_panel<Bf16Groups>((const bf16*)weight + index * PANEL * size, rows, size, (bf16*)panel.get());
    // Fills missing outputs with an existing value, as zeros would need another exponent. They are never read.
    for (int64_t k = 0; k < steps; ++k)
      for (int64_t n = rows; n < PANEL; ++n)
        panel[group_at<Bf16Groups>(k, n)] = panel[group_at<Bf16Groups>(k, 0)];
    compress_panel((const uint16_t*)panel.get(), steps, plain, to, to + index * compressed_panel_bytes(steps));
  });
  return plain.used();
}
}
