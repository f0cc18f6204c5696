// Waits for a value that another thread or process is about to write.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstdint>

namespace quire {

// The kernels of a step follow each other within microseconds, steps within a millisecond. So a waiting thread first spins,
// then yields its core, then sleeps.
constexpr int64_t SPIN_NANOSECONDS = 30'000, YIELD_NANOSECONDS = 300'000;
constexpr int PAUSES = 16;  // between two checks of the clock

inline int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("isb");
#endif
}

// Waits until `ready` returns true; returns false if that has not happened when it is time to sleep.
template <class Ready>
bool wait_awake(const Ready& ready, int64_t nanoseconds) {
  int64_t start = now(), waited = 0;
  while (waited < nanoseconds) {
    for (int i = 0; i < PAUSES; ++i, pause())
      if (ready()) return true;
    waited = now() - start;
    if (waited > SPIN_NANOSECONDS) sched_yield();
  }
  return ready();
}

}  // namespace quire
