// Parallel loops: pieces of work are handed out one by one, so that a late thread costs little.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace quire {

// Pieces per thread for small work items: enough that a late thread leaves little, few enough that taking them is cheap.
constexpr int64_t PIECES_A_THREAD = 16;

// The number of threads that share the work, including the calling one.
int threads();

// The index of the calling thread; 0 outside of the pool.
int thread_index();

// Calls piece(task, i) for each i below count; see parallel_for.
void run_pieces(int64_t count, void (*piece)(const void* task, int64_t index), const void* task);

// Calls task(i) for each i below count on the threads of the pool, and returns when all are done. Pieces start in order.
// Within a piece, and while another thread uses the pool, the caller does all the work itself.
template <class Task>
void parallel_for(int64_t count, const Task& task) {
  auto piece = [](const void* context, int64_t index) { (*static_cast<const Task*>(context))(index); };
  run_pieces(count, piece, &task);
}

// The same for small items: several consecutive ones make a piece, as taking a piece accesses a cache line that other
// threads write. Runs on one thread if the whole is not `worth` waking the others.
template <class Task>
void parallel_for(int64_t count, bool worth, const Task& task) {
  int64_t pieces = worth ? std::min<int64_t>(count, PIECES_A_THREAD * threads()) : 1;
  parallel_for(pieces, [&](int64_t piece) {
    for (int64_t i = piece * count / pieces, end = (piece + 1) * count / pieces; i < end; ++i) task(i);
  });
}

// The same for items that a thread should process in order, prefetching the next one: each thread has its own part, and
// helps with the others' parts when it is done.
template <class Task>
void parallel_for_in_parts(int64_t count, bool worth, const Task& task) {
  struct alignas(128) Part {
    std::atomic<int64_t> next;
    int64_t end;
  };
  int64_t number = worth ? std::min<int64_t>(count, threads()) : 1;
  if (number <= 1) return parallel_for(count, false, task);
  std::unique_ptr<Part[]> parts(new Part[number]);
  for (int64_t i = 0; i < number; ++i) parts[i].next = i * count / number, parts[i].end = (i + 1) * count / number;
  parallel_for(count, [&](int64_t) {
    for (int64_t i = thread_index() % number;; i = (i + 1) % number) {
      if (parts[i].next.load() >= parts[i].end) continue;
      int64_t index = parts[i].next.fetch_add(1);
      if (index < parts[i].end) return task(index);
    }
  });
}

}  // namespace quire
