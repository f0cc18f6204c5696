// Replays recorded kernel calls; see recordable.h.
#include <cstdint>

// Makes `count` calls, up to one that fails; returns how many were not made or have failed. Each call's words are the
// address of its quire_call_…, then the arguments.
extern "C" int64_t quire_replay(const int64_t* words, int64_t count) {
  using Call = const int64_t* (*)(const int64_t*);
  for (; count && words; --count) {
    words = reinterpret_cast<Call>(words[0])(words + 1);
    if (!words) break;
  }
  return count;
}
