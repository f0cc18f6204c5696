// Prefill over the paged cache: all new tokens of a sequence against its keys, causally, block by block with a running
// softmax (Dao et al. 2022), as products of packed matrices (matrix.h).
//
// A task is some consecutive queries of one sequence with the query heads that share one key-value head: each pair of
// query and head is a row. 64 keys at a time are packed as a panel of outputs, their values as panels over the head's
// values, so that the scores of 6 rows stay in registers and become weights without a detour through memory.
#ifdef __AVX512BF16__
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "paged.h"

using namespace quire_dot;

namespace {

constexpr int KEYS = PANEL;  // at a time
constexpr int MOST_TASK_ROWS = 128;
constexpr int MOST_PANELS = MOST_DIM / PANEL;

// Some consecutive queries of one sequence, for the query heads that share one key-value head.
struct Task {
  Cache cache;
  const bf16* query;  // of the first query's first head
  bf16* output;
  int64_t query_stride, output_stride;  // values between tokens
  int64_t position, count;              // of the first query; queries
  int group;
  float scale, softcap;  // softcap 0: none
  int64_t window;        // 0: none
  const float* sinks;    // of the query heads, or null

  int64_t rows() const { return count * group; }
  int64_t position_of(int64_t row) const { return position + row / group; }
  // The first key that a query at `at` sees.
  int64_t begin(int64_t at) const { return window ? std::max<int64_t>(0, at - window + 1) : 0; }
};

struct Scratch {
  alignas(64) bf16 query[MOST_TASK_ROWS * MOST_DIM];              // [rows, dim]
  alignas(64) float output[MOST_TASK_ROWS * MOST_DIM];            // [rows, panels * 64]
  alignas(64) uint32_t keys[MOST_DIM / 2 * KEYS];                 // [dim / 2, 64 keys]: pairs along dim
  alignas(64) uint32_t values[MOST_PANELS * (KEYS / 2) * PANEL];  // [panels, 32, 64 of dim]: pairs of keys
  float most[MOST_TASK_ROWS], total[MOST_TASK_ROWS];
};

// 16 rows of 16 to columns.
inline void transpose(__m512i (&rows)[LANES]) {
  __m512i half[LANES];
  for (int i = 0; i < LANES; i += 2) {
    half[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    half[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < LANES; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(half[i], half[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(half[i], half[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(half[i + 1], half[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(half[i + 1], half[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    half[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
    half[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
    half[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
    half[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_i32x4(half[i], half[i + 8], 0x88);
    rows[i + 4] = _mm512_shuffle_i32x4(half[i + 4], half[i + 12], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(half[i], half[i + 8], 0xdd);
    rows[i + 12] = _mm512_shuffle_i32x4(half[i + 4], half[i + 12], 0xdd);
  }
}

// Up to 64 keys; what lies behind the last one is masked out of the scores.
void pack_keys(const Cache& cache, const int64_t* offsets, int count, uint32_t* packed) {
  int64_t steps = cache.dim / 2;
  for (int t = 0; t < count; t += LANES)
    for (int64_t c = 0; c < steps; c += LANES) {
      __m512i rows[LANES];
      for (int i = 0; i < LANES; ++i)
        rows[i] = _mm512_maskz_loadu_epi32(t + i < count ? first(steps - c) : __mmask16(0),
                                           (const uint32_t*)(cache.keys + offsets[std::min(t + i, count - 1)]) + c);
      transpose(rows);
      for (int64_t i = 0; i < std::min<int64_t>(LANES, steps - c); ++i)
        _mm512_store_si512(packed + (c + i) * KEYS + t, rows[i]);
    }
}

// Up to 64 keys' values; zeros stand for the last pair's second one where there is none, and behind the head's values.
void pack_values(const Cache& cache, const int64_t* offsets, int count, uint32_t* packed) {
  for (int t = 0; t < count; t += 2) {
    const bf16 *one = cache.values + offsets[t], *other = t + 1 < count ? cache.values + offsets[t + 1] : nullptr;
    for (int64_t c = 0; c < (cache.dim + PANEL - 1) / PANEL * PANEL; c += LANES) {
      __m512i low = _mm512_setzero_si512(), high = low;
      if (c < cache.dim) {
        low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(one + c)));
        if (other) high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(other + c)));
      }
      _mm512_store_si512(packed + (c / PANEL * (KEYS / 2) + t / 2) * PANEL + c % PANEL,
                         _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

inline __mmask16 between(int64_t begin, int64_t end) {
  auto below = [](int64_t bound) { return first(std::max<int64_t>(0, bound)); };
  return below(end) & ~below(begin);
}

// One row's scores against the keys from `start` on to weights, in bfloat16; returns what scales its earlier output.
inline float soften(const Task& task, Scratch& scratch, int64_t row, int64_t start, __m512 (&scores)[VECTORS],
                    bf16* weights) {
  __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity()), highest = lowest;
  int64_t position = task.position_of(row), begin = task.begin(position) - start, end = position + 1 - start;
  __mmask16 masks[VECTORS];
  for (int v = 0; v < VECTORS; ++v) {
    masks[v] = between(begin - v * LANES, end - v * LANES);
    scores[v] = _mm512_mul_ps(scores[v], _mm512_set1_ps(task.scale));
    if (task.softcap > 0) scores[v] = cap_scores(scores[v], task.softcap);
    scores[v] = _mm512_mask_mov_ps(lowest, masks[v], scores[v]);
    highest = _mm512_max_ps(highest, scores[v]);
  }
  float before = scratch.most[row], most = std::max(before, _mm512_reduce_max_ps(highest));
  float factor = most > before ? std::exp(before - most) : 1.0f;
  __m512 sum = _mm512_setzero_ps();
  for (int v = 0; v < VECTORS; ++v) {
    __m512 weight = _mm512_maskz_mov_ps(masks[v], exponential(_mm512_sub_ps(scores[v], _mm512_set1_ps(most))));
    sum = _mm512_add_ps(sum, weight);
    store(weights + v * LANES, weight);
  }
  scratch.most[row] = most;
  scratch.total[row] = scratch.total[row] * factor + _mm512_reduce_add_ps(sum);
  return factor;
}

// ROWS rows of a task from `row` on, against the packed keys and values of `count` positions from `start` on.
template <int ROWS>
void attend_rows(const Task& task, Scratch& scratch, int64_t row, int64_t start, int count) {
  int64_t steps = task.cache.dim / 2, panels = (task.cache.dim + PANEL - 1) / PANEL;
  __m512 sums[ROWS][VECTORS];
  for (int i = 0; i < ROWS * VECTORS; ++i) sums[i / VECTORS][i % VECTORS] = Bf16::zero();
  multiply<Bf16, ROWS>((const uint32_t*)scratch.query + row * steps, steps, scratch.keys, steps, nullptr, 0, sums);
  alignas(64) bf16 weights[ROWS][KEYS];
  float factors[ROWS];
  for (int m = 0; m < ROWS; ++m) factors[m] = soften(task, scratch, row + m, start, sums[m], weights[m]);
  for (int64_t panel = 0; panel < panels; ++panel) {
    float* output = scratch.output + (row * panels + panel) * PANEL;
    for (int m = 0; m < ROWS; ++m)
      for (int v = 0; v < VECTORS; ++v)
        sums[m][v] = _mm512_mul_ps(_mm512_load_ps(output + m * panels * PANEL + v * LANES), _mm512_set1_ps(factors[m]));
    multiply<Bf16, ROWS>((const uint32_t*)weights, KEYS / 2, scratch.values + panel * (KEYS / 2) * PANEL,
                         (count + 1) / 2, nullptr, 0, sums);
    for (int m = 0; m < ROWS; ++m)
      for (int v = 0; v < VECTORS; ++v) _mm512_store_ps(output + m * panels * PANEL + v * LANES, sums[m][v]);
  }
}

void attend_rows(const Task& task, Scratch& scratch, int64_t rows, int64_t row, int64_t start, int count) {
  switch (rows) {
    case 1: return attend_rows<1>(task, scratch, row, start, count);
    case 2: return attend_rows<2>(task, scratch, row, start, count);
    case 3: return attend_rows<3>(task, scratch, row, start, count);
    case 4: return attend_rows<4>(task, scratch, row, start, count);
    case 5: return attend_rows<5>(task, scratch, row, start, count);
    default: return attend_rows<6>(task, scratch, row, start, count);
  }
}

// The task's rows in tiles of about the same height, but those that see none of the keys.
void attend_block(const Task& task, Scratch& scratch, int64_t start, int count) {
  int64_t tiles = (task.rows() + MOST_ROWS - 1) / MOST_ROWS;
  for (int64_t t = 0, row = 0; t < tiles; ++t) {
    int64_t rows = (task.rows() - row + tiles - t - 1) / (tiles - t);
    bool before = task.position_of(row + rows - 1) < start, behind = task.begin(task.position_of(row)) >= start + count;
    if (!before && !behind) attend_rows(task, scratch, rows, row, start, count);
    row += rows;
  }
}

void attend(const Task& task) {
  alignas(64) static thread_local Scratch scratch;
  int64_t dim = task.cache.dim, width = (dim + PANEL - 1) / PANEL * PANEL;
  for (int64_t row = 0; row < task.rows(); ++row) {
    int64_t head = row % task.group;
    std::copy_n(task.query + row / task.group * task.query_stride + head * dim, dim, scratch.query + row * dim);
    scratch.most[row] = task.sinks ? task.sinks[head] : -std::numeric_limits<float>::infinity();
    scratch.total[row] = task.sinks ? 1 : 0;
  }
  std::fill_n(scratch.output, task.rows() * width, 0.0f);
  int64_t end = task.position + task.count;
  for (int64_t start = task.begin(task.position); start < end; start += KEYS) {
    int count = int(std::min<int64_t>(KEYS, end - start));
    int64_t offsets[KEYS];
    task.cache.locate(start, count, offsets);
    pack_keys(task.cache, offsets, count, scratch.keys);
    pack_values(task.cache, offsets, count, scratch.values);
    attend_block(task, scratch, start, count);
  }
  for (int64_t row = 0; row < task.rows(); ++row) {
    bf16* output = task.output + row / task.group * task.output_stride + row % task.group * dim;
    for (int64_t c = 0; c < dim; c += LANES)
      store(output + c,
            _mm512_div_ps(_mm512_load_ps(scratch.output + row * width + c), _mm512_set1_ps(scratch.total[row])));
  }
}

}  // namespace

extern "C" {

// The new tokens of sequences[i], for num_seqs of them: rows query_start_loc[s] to query_start_loc[s + 1] of query, whose
// rows are `query_stride` values apart, and of output [tokens, heads, dim]. Their keys and values are in the cache.
// dim is a multiple of 16 up to 256; at most 128 query heads share a key-value head.
void quire_paged_prefill(const bf16* query, int64_t query_stride, const bf16* keys, const bf16* values, int64_t plane,
                         const int32_t* block_table, int64_t table_stride, const int32_t* query_start_loc,
                         const int32_t* seq_lens, const int32_t* sequences, int64_t num_seqs, bf16* output,
                         int64_t heads, int64_t kv_heads, int64_t dim, int64_t block_size, float scale, int64_t window,
                         float softcap, const float* sinks, int threads) {
  int group = int(heads / kv_heads);
  std::vector<Task> tasks;
  for (int64_t i = 0; i < num_seqs; ++i) {
    int64_t sequence = sequences[i], row = query_start_loc[sequence];
    int64_t count = query_start_loc[sequence + 1] - row, start = seq_lens[sequence] - count;
    int64_t most = MOST_TASK_ROWS / group, chunks = (count + most - 1) / most, step = (count + chunks - 1) / chunks;
    for (int64_t head = 0; head < kv_heads; ++head) {
      Cache cache{keys + head * plane, values + head * plane, block_table + sequence * table_stride, block_size, dim};
      for (int64_t at = 0; at < count; at += step)
        tasks.push_back({cache, query + (row + at) * query_stride + head * group * dim,
                         output + ((row + at) * heads + head * group) * dim, query_stride, heads * dim, start + at,
                         std::min(step, count - at), group, scale, softcap, window,
                         sinks ? sinks + head * group : nullptr});
    }
  }
  // The later a query, the more keys it sees: those first, so that the last tasks are short ones.
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t i = int64_t(tasks.size()) - 1; i >= 0; --i) attend(tasks[i]);
}
}
#endif
