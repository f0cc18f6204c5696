// Stress test of the thread pool in engine_svc/native/parallel.h: on failure, prints what was wrong and exits with 1.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "parallel.h"

extern "C" void quire_set_threads(int count);

using quire::parallel_for;
using quire::parallel_for_in_parts;

namespace {

void expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

// Values are not atomic, so doing a piece twice, or returning before all are done, is noticed.
void fill_and_check(int64_t count, int64_t start) {
  std::vector<int64_t> values(count, 0);
  parallel_for(count, [&](int64_t i) { values[i] += start + i; });
  parallel_for_in_parts(count, true, [&](int64_t i) { values[i] -= 2 * i; });
  parallel_for(count, true, [&](int64_t i) { values[i] *= 2; });  // where there are many, a piece covers several
  parallel_for(count, false, [&](int64_t i) { values[i] += 1; });
  for (int64_t i = 0; i < count; ++i) expect(values[i] == 2 * (start - i) + 1, "a piece was left out or done twice");
}

void many_regions() {
  for (int64_t region = 0; region < 20000; ++region) fill_and_check(region % 167, region);
}

void workers_that_slept() {
  for (int64_t region = 0; region < 50; ++region) {
    usleep(2000);
    fill_and_check(50, region);
  }
}

void several_callers() {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) callers.emplace_back(many_regions);
  for (auto& caller : callers) caller.join();
}

void nested() {
  std::atomic<int64_t> sum{0};
  for (int region = 0; region < 200; ++region)
    parallel_for(20, [&](int64_t) { parallel_for(20, [&](int64_t inner) { sum += inner; }); });
  expect(sum == 200 * 20 * 190, "nested regions lost pieces");
}

void changed_meanwhile() {
  std::atomic<bool> over{false};
  std::thread changer([&] {
    for (int count = 1; !over; count = count % 5 + 1) {
      quire_set_threads(count);
      usleep(500);
    }
  });
  many_regions();
  over = true;
  changer.join();
  quire_set_threads(4);
}

void in_order() {
  quire_set_threads(1);
  int64_t last = -1;
  parallel_for(100, [&](int64_t i) { expect(i == ++last, "one thread did not go in order"); });
  quire_set_threads(4);
}

// Two pieces wait for each other, so two threads must begin, each in its own part.
void in_parts() {
  quire_set_threads(2);
  bool found = false;
  for (int region = 0; region < 1000 && !found; ++region) {  // an earlier worker may still help with the first ones
    std::atomic<int> arrived{0};
    std::atomic<int64_t> first{0};
    parallel_for_in_parts(8, true, [&](int64_t i) {
      if (++arrived <= 2) first += i;
      while (arrived < 2) sched_yield();
    });
    found = first == 4;
  }
  expect(found, "threads did not begin in parts of their own");
  quire_set_threads(4);
}

// Two pieces wait for each other, which proves that two threads are at work; the worker runs where its caller did.
void bound() {
  cpu_set_t before, one;
  sched_getaffinity(0, sizeof before, &before);
  int core = 0;
  while (!CPU_ISSET(core, &before)) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  sched_setaffinity(0, sizeof one, &one);
  quire_set_threads(2);
  std::thread::id caller = std::this_thread::get_id();
  bool found = false;
  for (int region = 0; region < 1000 && !found; ++region) {  // an earlier worker may still help with the first ones
    std::atomic<int> arrived{0};
    parallel_for(2, [&](int64_t) {
      ++arrived;
      while (arrived < 2) sched_yield();
      cpu_set_t own;
      sched_getaffinity(0, sizeof own, &own);
      if (std::this_thread::get_id() != caller) found = CPU_EQUAL(&own, &one);
    });
  }
  expect(found, "a worker may run where the one that started it may not");
  sched_setaffinity(0, sizeof before, &before);
  quire_set_threads(4);
}

void forked() {
  fill_and_check(50, 1);
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    for (int64_t region = 0; region < 100; ++region) fill_and_check(50, region);
    std::exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  expect(status == 0, "a forked child did not get through");
  fill_and_check(50, 2);
}

}  // namespace

int main(int, char** arguments) {
  quire_set_threads(4);
  many_regions();
  workers_that_slept();
  several_callers();
  nested();
  in_order();
  in_parts();
  changed_meanwhile();
  bound();
  if (!arguments[1] || std::strcmp(arguments[1], "no-fork")) forked();
  std::exit(0);  // while workers are asleep, spinning, or just started
}
