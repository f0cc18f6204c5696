// Attention of a batch over the paged cache. Its rows are divided into tasks, and long tasks start first. With few tasks,
// each partition of a task's context is a separate piece of work. A prefix shared by the contexts of several sequences is
// attended to first, by tasks with the rows of all these sequences; the sequences' own tasks continue from there.
#include <memory>
#include <vector>

#include "attention.h"
#include "parallel.h"
#include "prefixes.h"
#include "recordable.h"
#include "types.h"

using namespace quire;

namespace {

constexpr int64_t TASKS_PER_THREAD = 4;
constexpr int64_t AHEAD_TOKENS = 8;
constexpr int64_t WORTH_A_THREAD = 1 << 17;  // multiplications: below this, waking a thread costs more than it saves

struct Call {
  const void* query;
  int64_t query_stride;  // values between tokens
  const void *keys, *values;
  int64_t block_stride, head_stride;  // values between blocks, and between heads
  const int32_t* block_table;
  int64_t table_stride;
  const int32_t *query_start, *seq_lens;
  int64_t num_seqs;
  void* output;
  int64_t heads, kv_heads, dim, block_size;
  Options options;
  const float *sinks, *slopes;
  float* lse;

  int64_t group() const { return heads / kv_heads; }
  int64_t new_tokens(int64_t sequence) const { return query_start[sequence + 1] - query_start[sequence]; }
};

// The states of all rows of a prefix's sequences after attending to the prefix.
struct Begun {
  const Prefix* prefix;
  int64_t kv_heads;
  std::vector<State> states;  // [partitions, kv_heads], each of the prefix's rows

  const State& state(int64_t partition, int64_t head) const { return states[partition * kv_heads + head]; }
};

struct Task {
  int64_t sequence, head;  // the first of its key-value heads
  Rows rows;
  Range seen;
  const Prefix* joint;  // the prefix that the task attends to with the rows of all its sequences; null: one sequence
  const Begun* begun;   // the prefix's results, which the task continues, from row `begun_row` on; null: no prefix
  int64_t begun_row;

  int64_t begin() const { return begun ? begun->prefix->positions : seen.begin; }
  int64_t cost() const { return rows.of_all_heads() * (seen.end - begin()); }
  int64_t first_partition() const { return seen.begin / PARTITION; }
  int64_t partitions() const { return (seen.end - 1) / PARTITION + 1 - first_partition(); }
};

// The most rows per task that leave work for all threads, if each row has this many partitions.
int64_t share_of_rows(const Call& call, int64_t partitions) {
  int64_t share = call.query_start[call.num_seqs] * call.heads * partitions / (TASKS_PER_THREAD * threads());
  return std::min({share, MOST_TASK_ROWS, MOST_ROWS_DIM / call.dim});
}

// The most rows of a task per key-value head.
int64_t rows_of_head(const Call& call) {
  return std::max<int64_t>(TILE_ROWS, share_of_rows(call, 1) / TILE_ROWS * TILE_ROWS);
}

// How many tasks the key-value heads are divided among, if a task has `rows` rows per head that see `seen` positions.
// A head's chunk has `chunk_bytes`.
int64_t parts_of_heads(const Call& call, int64_t rows, int64_t seen, int64_t chunk_bytes) {
  int64_t heads = share_of_rows(call, (seen + PARTITION - 1) / PARTITION) / rows;
  heads = std::max<int64_t>(1, std::min({heads, int64_t(MOST_HEADS), HEADS_BYTES / chunk_bytes}));
  return (call.kv_heads + heads - 1) / heads;
}

// Adds tasks like this one for all heads.
void add_for_all_heads(const Call& call, Task task, int64_t chunk_bytes, std::vector<Task>& tasks) {
  int64_t parts = parts_of_heads(call, task.rows.count(), task.seen.end - task.begin(), chunk_bytes);
  for (int64_t part = 0; part < parts; ++part) {
    task.head = part * call.kv_heads / parts;
    task.rows.heads = (part + 1) * call.kv_heads / parts - task.head;
    task.rows.slopes = call.slopes ? call.slopes + task.head * task.rows.group : nullptr;
    tasks.push_back(task);
  }
}

std::vector<Task> cut(const Call& call, const std::vector<Begun>& all_begun, int64_t chunk_bytes) {
  std::vector<Task> tasks;
  std::vector<std::pair<const Begun*, int64_t>> begun(call.num_seqs);
  for (const Begun& some : all_begun) {
    int64_t row = 0;
    for (int64_t sequence : some.prefix->sequences) {
      begun[sequence] = {&some, row};
      row += call.new_tokens(sequence) * call.group();
    }
  }
  int64_t step = rows_of_head(call);
  for (int64_t sequence = 0; sequence < call.num_seqs; ++sequence) {
    int64_t count = call.new_tokens(sequence), length = call.seq_lens[sequence];
    Rows all{length - count, call.group(), 1, 0, count * call.group(), length, nullptr};
    auto [before, before_row] = begun[sequence];
    for (int64_t first = 0; first < all.last; first += step) {
      Rows rows = all;
      rows.first = first, rows.last = std::min(all.last, first + step);
      Range seen = rows.seen(0, rows.count(), call.options);
      add_for_all_heads(call, {sequence, 0, rows, seen, nullptr, before, before_row + first}, chunk_bytes, tasks);
    }
  }
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.cost() > b.cost(); });
  return tasks;
}

// Computes one task's rows.
template <class Value, class Cached>
class Work {
 public:
  Work(const Call& call, const Task& task) : call(call), task(task) {}

  // Runs the whole task. `next` is this thread's next task (null: unknown), for prefetching.
  void run(const Task* next) {
    State part(scratch().part, task.rows.of_all_heads(), call.dim);
    load_query();
    if (task.partitions() == 1 && !call.sinks) {  // the same result as merging it into an empty state
      attend(0, part, next, 0);
      return finish(part);
    }
    State whole = begin();
    for (int64_t i = 0; i < task.partitions(); ++i) {
      bool last = i + 1 == task.partitions();
      attend(i, part, last ? next : &task, last ? 0 : i + 1);
      merge(i, part, whole);
    }
    finish(whole);
  }

  // Runs one partition, and leaves its state in shared memory.
  void run(int64_t partition, float* memory) {
    State part(memory, task.rows.of_all_heads(), call.dim);
    load_query();
    attend(partition, part, nullptr, 0);
  }

  // Merges the states of all partitions, and writes the output.
  void finish(float* memory) {
    State whole = begin();
    for (int64_t i = 0; i < task.partitions(); ++i, memory += State::size(whole.rows, whole.dim))
      merge(i, State(memory, whole.rows, whole.dim), whole);
    finish(whole);
  }

 private:
  using Type = Groups<Value>;
  using Input = typename Type::Input;
  static constexpr int64_t LINE = 64 / sizeof(Value);
  const Call& call;
  const Task& task;

  // Calls visit(row, token, head) for the rows of all heads in order, with a row's token in the batch and its query head.
  template <class Visit>
  void each_row(const Visit& visit) const {
    int64_t group = call.group(), row = 0;
    for (int64_t kv_head = task.head; kv_head < task.head + task.rows.heads; ++kv_head) {
      auto rows_of = [&](int64_t sequence, int64_t first, int64_t last) {
        int64_t token = call.query_start[sequence] + first / group, within = first % group;
        for (int64_t i = first; i < last; ++i, ++row) {
          visit(row, token, kv_head * group + within);
          if (++within == group) within = 0, ++token;
        }
      };
      if (!task.joint) rows_of(task.sequence, task.rows.first, task.rows.last);
      else for (int64_t sequence : task.joint->sequences) rows_of(sequence, 0, call.new_tokens(sequence) * group);
    }
  }

  // Prefetches a row some tokens ahead: tokens are too far apart for the hardware prefetcher.
  [[gnu::always_inline]] void fetch(const Value* row) const {
    if (task.rows.count() <= AHEAD_TOKENS * call.group()) return;
    for (int64_t i = 0; i < call.dim; i += LINE) prefetch(row + i);
  }

  void load_query() {
    auto* to = (Input*)scratch().query;
    each_row([&](int64_t row, int64_t token, int64_t head) {
      auto* from = (const Value*)call.query + token * call.query_stride + head * call.dim;
      fetch(from + AHEAD_TOKENS * call.query_stride);
      for (int64_t i = 0; i < call.dim; i += LANES) store(to + row * call.dim + i, load(from + i));
    });
  }

  // The initial state: a row starts with its sink, if there is one.
  State begin() {
    State whole(scratch().whole, task.rows.of_all_heads(), call.dim);
    whole.clear();
    if (call.sinks)
      each_row([&](int64_t row, int64_t, int64_t head) {
        whole.most[row] = call.sinks[head];
        whole.total[row * LANES] = 1;
      });
    return whole;
  }

  static int64_t position(const Task& task, int64_t partition) { return (task.first_partition() + partition) * PARTITION; }

  Paged<Value, Cached> cache_of(const Task& task) const {
    auto *keys = (const Cached*)call.keys, *values = (const Cached*)call.values;
    return {keys ? keys + task.head * call.head_stride : nullptr, values + task.head * call.head_stride,
            call.block_table + task.sequence * call.table_stride, call.block_stride, call.head_stride, call.block_size,
            call.dim};
  }

  // Attends to a partition. What comes next, a partition of `next` (null: unknown), is prefetched.
  void attend(int64_t partition, State& part, const Task* next, int64_t next_partition) {
    int64_t at = position(task, partition), from = at, end = at + PARTITION;
    if (task.begun && at < task.begin()) {
      go_on(partition, part);
      from = std::min(task.begin(), end);
    }
    if (from == end) return;
    Paged<Value, Cached> cache = cache_of(task);
    Place<Value, Cached> after{};
    if (next) {
      int64_t chunk = chunk_of<Value>(call.dim), first = next->begin() / chunk * chunk;
      after = {cache_of(*next), next->rows.heads, next->seen, std::max(position(*next, next_partition), first)};
    }
    Attention<Type, Cached> attention(task.rows, call.options, cache, (const Input*)scratch().query);
    attention.attend(at, from, end, part, next ? &after : nullptr);
  }

  // Starts a partition from the rows' states after the shared prefix.
  void go_on(int64_t partition, State& part) const {
    int64_t count = task.rows.count();
    for (int64_t head = 0; head < task.rows.heads; ++head)
      for (int64_t row = 0; row < count; ++row)
        part.take(head * count + row, task.begun->state(partition, task.head + head), task.begun_row + row);
  }

  void merge(int64_t partition, const State& part, State& whole) {
    int64_t at = position(task, partition);
    for (int64_t row = 0; row < whole.rows; ++row) {
      Range seen = task.rows.seen(row % task.rows.count(), call.options);
      if (!seen.within(at, at + PARTITION).empty()) whole.merge(row, part);
    }
  }

  void finish(const State& whole) {
    each_row([&](int64_t row, int64_t token, int64_t head) {
      int64_t at = token * call.heads + head;
      float sums = sum(load(whole.total + row * LANES));
      if (call.lse) call.lse[at] = whole.most[row] + std::log(sums);
      // 0 for rows that see nothing.
      Floats factor = all(1.0f / std::max(sums, std::numeric_limits<float>::min()));
      auto* to = (Value*)call.output + at * call.dim;
      fetch(to + AHEAD_TOKENS * call.heads * call.dim);
      for (int64_t i = 0; i < call.dim; i += LANES) store(to + i, load(whole.output + row * call.dim + i) * factor);
    });
  }
};

// All partitions of tasks as separate pieces of work.
class Pieces {
 public:
  Pieces(const std::vector<Task>& tasks, int64_t dim) : tasks(tasks), dim(dim) {
    for (size_t i = 0; i < tasks.size(); ++i) {
      first.push_back(pieces.size());
      for (int64_t p = 0; p < tasks[i].partitions(); ++p) {
        pieces.push_back({i, p, size});
        size += State::size(tasks[i].rows.of_all_heads(), dim);
      }
    }
    memory.reset(new float[size]);
  }

  template <class Value, class Cached>
  void run(const Call& call) {
    parallel_for(int64_t(pieces.size()), [&](int64_t i) {
      Work<Value, Cached>(call, tasks[pieces[i].task]).run(pieces[i].partition, memory.get() + pieces[i].at);
    });
  }

  // A task's states, one for each partition.
  float* states(size_t task) const { return memory.get() + pieces[first[task]].at; }
  bool worth_a_thread() const { return size > WORTH_A_THREAD; }

 private:
  struct Piece {
    size_t task;
    int64_t partition, at;
  };
  const std::vector<Task>& tasks;
  int64_t dim, size = 0;
  std::vector<Piece> pieces;
  std::vector<size_t> first;  // first piece of each task
  std::unique_ptr<float[]> memory;
};

template <class Value, class Cached>
void run_in_parts(const Call& call, const std::vector<Task>& tasks) {
  Pieces pieces(tasks, call.dim);
  pieces.run<Value, Cached>(call);
  parallel_for(int64_t(tasks.size()), pieces.worth_a_thread(),
               [&](int64_t i) { Work<Value, Cached>(call, tasks[i]).finish(pieces.states(i)); });
}

// The shared prefixes of a batch; none unless each row sees everything older than its sequence's new tokens.
std::vector<Prefix> prefixes_of(const Call& call, int64_t chunk) {
  const Options& options = call.options;
  if (call.num_seqs < 2 || options.window || options.bidirectional || options.parts > 1 || call.slopes) return {};
  Contexts contexts{call.block_table, call.table_stride, call.block_size, {}, {}};
  for (int64_t i = 0; i < call.num_seqs; ++i) {
    contexts.positions.push_back(call.seq_lens[i] - call.new_tokens(i));
    contexts.rows.push_back(call.new_tokens(i) * call.group());
  }
  return find_prefixes(contexts, chunk, std::min(MOST_TASK_ROWS, MOST_ROWS_DIM / call.dim));
}

std::vector<Task> cut_prefixes(const Call& call, const std::vector<Prefix>& prefixes, int64_t chunk_bytes) {
  std::vector<Task> tasks;
  for (const Prefix& prefix : prefixes) {
    Rows rows{0, 1, 1, 0, prefix.rows, prefix.positions, nullptr};
    add_for_all_heads(call, {prefix.sequences[0], 0, rows, {0, prefix.positions}, &prefix, nullptr, 0}, chunk_bytes, tasks);
  }
  return tasks;
}

std::vector<Begun> begun_of(const Call& call, const std::vector<Task>& tasks, const Pieces& pieces) {
  std::vector<Begun> all;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i];
    if (all.empty() || all.back().prefix != task.joint)
      all.push_back({task.joint, call.kv_heads, {size_t(task.partitions() * call.kv_heads), State(nullptr, 0, 0)}});
    for (int64_t p = 0, rows = task.rows.of_all_heads(); p < task.partitions(); ++p) {
      State state(pieces.states(i) + p * State::size(rows, call.dim), rows, call.dim);
      for (int64_t head = 0; head < task.rows.heads; ++head)
        all.back().states[p * call.kv_heads + task.head + head] = state.from(head * task.rows.count());
    }
  }
  return all;
}

template <class Value, class Cached>
void run(const Call& call) {
  int64_t planes = call.keys ? 2 : 1, chunk = chunk_of<Value>(call.dim);
  int64_t chunk_bytes = planes * chunk * call.dim * sizeof(Cached);
  std::vector<Prefix> prefixes = prefixes_of(call, chunk);
  Call of_prefixes = call;
  of_prefixes.options.bidirectional = true;  // each row sees all of them
  std::vector<Task> first = cut_prefixes(of_prefixes, prefixes, chunk_bytes);
  Pieces pieces(first, call.dim);
  if (!first.empty()) pieces.run<Value, Cached>(of_prefixes);
  std::vector<Begun> begun = begun_of(call, first, pieces);

  std::vector<Task> tasks = cut(call, begun, chunk_bytes);
  int64_t cost = 0, partitions = 0;
  for (const Task& task : tasks) cost += task.cost(), partitions = std::max(partitions, task.partitions());
  if (partitions > 1 && int64_t(tasks.size()) < 2 * TASKS_PER_THREAD * threads())
    return run_in_parts<Value, Cached>(call, tasks);
  int64_t count = tasks.size();
  parallel_for_in_parts(count, cost * call.dim > WORTH_A_THREAD, [&](int64_t i) {
    Work<Value, Cached>(call, tasks[i]).run(i + 1 < count ? &tasks[i + 1] : nullptr);
  });
}

}  // namespace

extern "C" {

// Attention of the new tokens of num_seqs sequences. Sequence s has rows query_start[s] to query_start[s + 1] of query,
// whose tokens are `query_stride` values apart, and of output [tokens, heads, dim]; they are the last of its seq_lens[s]
// positions. Their keys and values are already in the cache, with the given strides between blocks and between heads, in
// values; keys is null if the values are also the keys. dim and block_size are multiples of 16. The cache holds every
// parts-th position of a sequence, from `part` on. sinks and slopes are [heads], or null. lse [tokens, heads], unless
// null, receives the logarithm of each row's sum of exponentiated scores. A row that sees nothing gets minus infinity
// there, and 0 as its output.
void quire_attend(int type, int cached, const void* query, int64_t query_stride, const void* keys, const void* values,
                  int64_t block_stride, int64_t head_stride, const int32_t* block_table, int64_t table_stride,
                  const int32_t* query_start, const int32_t* seq_lens, int64_t num_seqs, void* output, int64_t heads,
                  int64_t kv_heads, int64_t dim, int64_t block_size, float scale, int64_t window, int chunked,
                  int bidirectional, float softcap, const float* sinks, const float* slopes, int64_t part,
                  int64_t parts, float* lse) {
  Call call{query, query_stride, keys, values, block_stride, head_stride, block_table, table_stride, query_start,
            seq_lens, num_seqs, output, heads, kv_heads, dim, block_size,
            {scale, softcap, window, window && chunked, bool(bidirectional), part, parts, cached}, sinks, slopes, lse};
  with_type(type, [&](auto value) {
    using Value = decltype(value);
    cached ? run<Value, EightBits>(call) : run<Value, Value>(call);
  });
}
}

RECORDABLE(attend)
