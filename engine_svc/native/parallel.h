// Work for all cores: pieces are handed out one by one, so that a thread which comes late costs little.
#pragma once

#include <cstdint>

namespace quire {

// The threads that share the work from now on.
void set_threads(int count);
int threads();

// task(i) for each i below count, each by some thread; returns when all are done. Pieces start in order.
template <class Task>
void parallel_for(int64_t count, const Task& task) {
#pragma omp parallel for schedule(dynamic) num_threads(threads())
  for (int64_t i = 0; i < count; ++i) task(i);
}

// The same in one thread where the whole is not `worth` waking the others.
template <class Task>
void parallel_for(int64_t count, bool worth, const Task& task) {
  if (worth) return parallel_for(count, task);
  for (int64_t i = 0; i < count; ++i) task(i);
}

}  // namespace quire
