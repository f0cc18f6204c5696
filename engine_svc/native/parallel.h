// Work for all cores: pieces are handed out one by one, so that a thread which comes late costs little.
#pragma once

#include <cstdint>

namespace quire {

// The threads that share the work, the calling one among them.
int threads();

// Calls piece(task, i) for each i below count; see parallel_for.
void run_pieces(int64_t count, void (*piece)(const void* task, int64_t index), const void* task);

// task(i) for each i below count, each by some thread; returns when all are done. Pieces start in order. Within a
// piece, and while another thread has the pool, all are done by the caller.
template <class Task>
void parallel_for(int64_t count, const Task& task) {
  auto piece = [](const void* context, int64_t index) { (*static_cast<const Task*>(context))(index); };
  run_pieces(count, piece, &task);
}

// The same in one thread where the whole is not `worth` waking the others.
template <class Task>
void parallel_for(int64_t count, bool worth, const Task& task) {
  if (worth) return parallel_for(count, task);
  for (int64_t i = 0; i < count; ++i) task(i);
}

}  // namespace quire
