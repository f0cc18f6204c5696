// The thread pool of parallel.h. A parallel region is a counter of remaining pieces. A thread that decrements it and finds
// that it was above zero owns a piece of the current region, which cannot end, nor its task be destroyed, before that piece
// is reported as done. So the caller waits only for pieces in progress, never for a thread, and a worker that wakes up late
// finds nothing to do.
#include "parallel.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "waiting.h"

namespace quire {
namespace {

constexpr int MAX_THREADS = 1024;
constexpr int APART = 128;  // bytes: two cache lines, which processors fetch together

struct Pool {
  // The region: what a thread reads and writes to take a piece, on one line.
  alignas(APART) std::atomic<int64_t> remaining{0};
  int64_t count = 0;
  void (*piece)(const void*, int64_t) = nullptr;
  const void* task = nullptr;
  alignas(APART) std::atomic<int64_t> done{0};    // pieces that workers have reported
  alignas(APART) std::atomic<bool> taken{false};  // by the thread that runs a region, or changes the following fields
  int started = 1;                                // number of threads including the caller
  alignas(APART) std::atomic<int> wanted{1};      // the same from the next region on
  std::atomic<int> sleepers{0};
  std::atomic<uint32_t> alarm{0};       // counts up to wake the sleepers
  std::atomic<uint32_t> generation{0};  // workers of an older one leave
};

// Never destroyed: workers may wait in it while the process exits.
Pool& pool() {
  static Pool& instance = *new Pool;
  return instance;
}

// Takes and runs pieces while there are any; returns how many.
int64_t work(Pool& pool) {
  if (pool.remaining.load() <= 0) return 0;
  int64_t left = pool.remaining.fetch_sub(1), did = 0;
  for (; left > 0; ++did, left = pool.remaining.fetch_sub(1)) pool.piece(pool.task, pool.count - left);
  return did;
}

void wake_sleepers(Pool& pool) {
  if (pool.sleepers.load() == 0) return;
  pool.alarm.fetch_add(1);
  syscall(SYS_futex, &pool.alarm, FUTEX_WAKE_PRIVATE, MAX_THREADS, nullptr, nullptr, 0);
}

template <class Ready>
void sleep_until(Pool& pool, const Ready& ready) {
  while (!ready()) {
    uint32_t heard = pool.alarm.load();
    pool.sleepers.fetch_add(1);
    if (!ready()) syscall(SYS_futex, &pool.alarm, FUTEX_WAIT_PRIVATE, heard, nullptr, nullptr, 0);
    pool.sleepers.fetch_sub(1);
  }
}

thread_local int own_index = 0;

// The main function of a worker. `born` has its index and the generation that it belongs to.
void* serve(void* born) {
  pthread_setname_np(pthread_self(), "quire-kernels");
  Pool& own = pool();
  uint64_t both = reinterpret_cast<uintptr_t>(born);
  uint32_t generation = uint32_t(both);
  own_index = int(both >> 32);
  auto called = [&] { return own.remaining.load() > 0 || own.generation.load() != generation; };
  while (own.generation.load() == generation) {
    if (!wait_awake(called, YIELD_NANOSECONDS)) sleep_until(own, called);
    if (int64_t did = work(own)) own.done.fetch_add(did);
  }
  return nullptr;
}

// Starts a worker. It inherits the calling thread's CPU affinity, and blocks all signals, which are for the program's own
// threads. If it cannot be started, this is no error: the caller then does the remaining work.
void start_worker(Pool& pool, int index) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t worker;
  uint64_t born = uint64_t(index) << 32 | pool.generation.load();
  pthread_create(&worker, &attributes, serve, reinterpret_cast<void*>(uintptr_t(born)));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
}

// After a fork, the child has only the forking thread: it has no workers, and no region is in progress.
void forget_workers() {
  Pool& own = pool();
  own.remaining.store(0);
  own.sleepers.store(0);
  own.started = 1;
  own.taken.store(false);
}

void start_workers(Pool& pool) {
  static int registered = pthread_atfork(nullptr, nullptr, forget_workers);
  (void)registered;
  pool.generation.fetch_add(1);
  wake_sleepers(pool);
  pool.started = pool.wanted.load();
  for (int index = 1; index < pool.started; ++index) start_worker(pool, index);
}

}  // namespace

int threads() { return pool().wanted.load(); }
int thread_index() { return own_index; }

void run_pieces(int64_t count, void (*piece)(const void*, int64_t), const void* task) {
  Pool& own = pool();
  if (count <= 1 || own.wanted.load() == 1 || own.taken.exchange(true)) {
    for (int64_t i = 0; i < count; ++i) piece(task, i);
    return;
  }
  if (own.started != own.wanted.load()) start_workers(own);
  own.count = count, own.piece = piece, own.task = task;
  own.done.store(0);
  own.remaining.store(count);
  wake_sleepers(own);
  int64_t others = count - work(own);
  while (!wait_awake([&] { return own.done.load() == others; }, YIELD_NANOSECONDS)) {
  }
  own.taken.store(false);
}

}  // namespace quire

// Sets the number of threads, including the calling one, from the next region on; that region's caller restarts the others.
extern "C" void quire_set_threads(int count) {
  using namespace quire;
  Pool& own = pool();
  while (own.taken.exchange(true)) sched_yield();
  own.wanted.store(count < 1 ? 1 : count < MAX_THREADS ? count : MAX_THREADS);
  own.started = 0;
  own.taken.store(false);
}
