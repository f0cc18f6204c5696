// Calls of kernels that were noted: see recordable.h.
#include <cstdint>

// Makes `count` calls. The words of each are the address of its quire_call_…, then the arguments.
extern "C" void quire_replay(const int64_t* words, int64_t count) {
  using Call = const int64_t* (*)(const int64_t*);
  for (; count; --count) words = reinterpret_cast<Call>(words[0])(words + 1);
}
