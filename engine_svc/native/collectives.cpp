// All-reduce and all-gather over the ranks of one machine, through shared memory.
//
// A rank writes its values to its own buffer ("room"), increments its counter, which all ranks can see, and waits for the
// others' counters; then all ranks read all rooms. Each rank has two rooms and alternates between them: a rank that has
// filled its second room has read the others' first rooms, so these can be filled again. Tensors larger than a room go in
// parts.
//
// Values are summed from the first rank to the last, in float32, whichever rank sums them and however many there are.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>

#include "parallel.h"
#include "recordable.h"
#include "types.h"
#include "waiting.h"

using namespace quire;

namespace quire {

// As in recordable.h, for kernels that return 0 on failure; then there are no further words.
template <class... Arguments, size_t... INDEX>
const int64_t* call(int64_t (*kernel)(Arguments...), const int64_t* words, std::index_sequence<INDEX...>) {
  return kernel(from_word<Arguments>(words[INDEX])...) ? words + sizeof...(Arguments) : nullptr;
}

template <class... Arguments>
const int64_t* call(int64_t (*kernel)(Arguments...), const int64_t* words) {
  return call(kernel, words, std::index_sequence_for<Arguments...>{});
}

}  // namespace quire

namespace {

constexpr int64_t PIECE = 1 << 14;           // values or bytes that a thread takes at a time
constexpr int64_t WORTH_DIVIDING = 1 << 15;  // bytes: from this size on, each rank sums a share
constexpr int64_t LINE = 128;                // bytes: two cache lines, which processors fetch together
constexpr int64_t NAP_NANOSECONDS = 20'000'000;  // between two checks of the clock and for ranks that have given up

struct alignas(LINE) Count {
  std::atomic<uint32_t> put;       // how often the rank has filled a room, or changed its content
  std::atomic<uint32_t> sleepers;  // how many wait for it
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "counts are shared by processes");

// As in engine_svc/parallel/shared_memory.py: the end of rank `rank` in a group of `ranks`.
struct SharedRanks {
  char* memory;  // a line; then a counter for each rank; then two rooms for each rank
  int64_t rank, ranks, room;  // room: bytes
  int64_t nanoseconds;        // how long to wait for the others
  int64_t put, parts;         // so far

  // Set by a rank that stops waiting, to tell all others: no later sum would be correct.
  std::atomic<uint32_t>& abandoned() const { return *(std::atomic<uint32_t>*)memory; }
  Count& count(int64_t of) const { return ((Count*)(memory + LINE))[of]; }

  template <class Value>
  Value* room_of(int64_t of) const {
    return (Value*)(memory + LINE * (1 + ranks) + (2 * of + parts % 2) * room);
  }
};

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* time) {
  syscall(SYS_futex, &word, operation, value, time, nullptr, 0);
}

bool await(const SharedRanks& own, int64_t other) {
  Count& count = own.count(other);
  auto ready = [&] { return int32_t(count.put.load() - uint32_t(own.put)) >= 0; };
  if (wait_awake(ready, YIELD_NANOSECONDS)) return true;
  timespec nap{0, NAP_NANOSECONDS};
  for (int64_t end = now() + own.nanoseconds; !ready();) {
    if (now() > end) own.abandoned().store(1);
    if (own.abandoned().load()) return false;
    count.sleepers.fetch_add(1);
    uint32_t seen = count.put.load();
    if (!ready()) futex(count.put, FUTEX_WAIT, seen, &nap);
    count.sleepers.fetch_sub(1);
  }
  return true;
}

// Publishes this rank's room, and waits until all others have published theirs; false if they do not in time.
bool meet(SharedRanks& own) {
  if (own.abandoned().load()) return false;
  Count& count = own.count(own.rank);
  count.put.store(uint32_t(++own.put));
  if (count.sleepers.load()) futex(count.put, FUTEX_WAKE, INT_MAX, nullptr);
  for (int64_t other = 0; other < own.ranks; ++other)
    if (!await(own, other)) return false;
  return true;
}

// Calls piece(first, count) for all values from `first` to `last`, on all threads.
template <class Piece>
void for_pieces(int64_t first, int64_t last, const Piece& piece) {
  parallel_for((last - first + PIECE - 1) / PIECE, last - first > 2 * PIECE, [&](int64_t i) {
    int64_t start = first + i * PIECE;
    piece(start, std::min(PIECE, last - start));
  });
}

template <class Value>
void copy(const Value* from, Value* to, int64_t first, int64_t last) {
  for_pieces(first, last, [=](int64_t start, int64_t count) { std::copy_n(from + start, count, to + start); });
}

template <class Value>
void sum_rooms(const SharedRanks& own, Value* to, int64_t first, int64_t last) {
  for_pieces(first, last, [=, &own](int64_t start, int64_t count) {
    for (int64_t i = start; i < start + count; i += LANES) {
      int64_t left = start + count - i;
      Floats total = load(own.room_of<Value>(0) + i, left);
      for (int64_t rank = 1; rank < own.ranks; ++rank) total = total + load(own.room_of<Value>(rank) + i, left);
      store(to + i, total, left);
    }
  });
}

// How many of `count` values each rank sums if they are divided: a multiple of whole lines.
int64_t share_of(const SharedRanks& own, int64_t count) { return ((count + own.ranks - 1) / own.ranks + 63) / 64 * 64; }

// Sums values that fit in a room.
template <class Value>
bool sum_part(SharedRanks& own, Value* values, int64_t count) {
  Value* mine = own.room_of<Value>(own.rank);
  copy(values, mine, 0, count);
  if (!meet(own)) return false;
  if (own.ranks == 2 || count * int64_t(sizeof(Value)) < WORTH_DIVIDING) {
    sum_rooms(own, values, 0, count);
    return true;
  }
  int64_t share = share_of(own, count);
  auto first = [&](int64_t rank) { return std::min(rank * share, count); };
  sum_rooms(own, mine, first(own.rank), first(own.rank + 1));  // nobody else reads that share before we meet again
  if (!meet(own)) return false;
  for (int64_t rank = 0; rank < own.ranks; ++rank)
    copy(own.room_of<Value>(rank), values, first(rank), first(rank + 1));
  return true;
}

// Gathers [rows, bytes] that fit in a room, from rows `stride` bytes apart.
bool gather_part(SharedRanks& own, const char* values, int64_t stride, int64_t rows, int64_t bytes, char* output) {
  char* mine = own.room_of<char>(own.rank);
  for (int64_t row = 0; row < rows; ++row) copy(values + row * stride, mine + row * bytes, 0, bytes);
  if (!meet(own)) return false;
  parallel_for(own.ranks * rows, own.ranks * rows * bytes > 2 * PIECE, [&](int64_t i) {
    int64_t row = i / own.ranks, rank = i % own.ranks;
    std::copy_n(own.room_of<char>(rank) + row * bytes, bytes, output + (row * own.ranks + rank) * stride);
  });
  return true;
}

}  // namespace

extern "C" {

// Replaces values by their sum over the ranks; returns 0 if a rank did not arrive in time.
int64_t quire_all_reduce(SharedRanks* own, int type, void* values, int64_t count) {
  bool all = true;
  with_type(type, [&](auto value) {
    using Value = decltype(value);
    int64_t most = own->room / sizeof(Value);
    for (int64_t done = 0; all && done < count; done += most, ++own->parts)
      all = sum_part(*own, (Value*)values + done, std::min(most, count - done));
  });
  return all;
}

// The ranks' values [rows, bytes] side by side: output [rows, ranks, bytes]. Returns as quire_all_reduce.
int64_t quire_all_gather(SharedRanks* own, const void* values, int64_t rows, int64_t bytes, void* output) {
  int64_t width = std::min(bytes, own->room), height = std::max<int64_t>(1, bytes ? own->room / bytes : 1);
  for (int64_t row = 0; row < rows; row += height)
    for (int64_t column = 0; column < bytes; column += width, ++own->parts) {
      bool all = gather_part(*own, (const char*)values + row * bytes + column, bytes, std::min(height, rows - row),
                             std::min(width, bytes - column), (char*)output + row * own->ranks * bytes + column);
      if (!all) return 0;
    }
  return 1;
}
}

RECORDABLE(all_reduce)
RECORDABLE(all_gather)
