// Decoding over the paged cache: one query per sequence, keys and values read once, where they lie.
//
// A task is one sequence and one key-value head, with all the query heads that share it: softmax runs along as the keys
// come (Milakov and Gimelshein 2018), 16 keys at a time.
#include <algorithm>
#include <cmath>
#include <limits>

#include "paged.h"

using namespace quire;

namespace {

constexpr int MOST_GROUP = 16;

struct State {
  alignas(64) float query[MOST_GROUP][MOST_DIM];  // scaled
  alignas(64) float output[MOST_GROUP][MOST_DIM];
  alignas(64) float score[MOST_GROUP][LANES];
  float most[MOST_GROUP], total[MOST_GROUP];
};

// Up to 16 keys, of heads of CHUNKS * 16 values, against GROUP queries from `head` on.
template <int CHUNKS, int GROUP>
inline void score_keys(State& state, const Cache& cache, const int64_t* offsets, int count, int head) {
  for (int t = 0; t < count; ++t) {
    const bf16* key = cache.keys + offsets[t];
    __m512 sums[GROUP];
    for (int g = 0; g < GROUP; ++g) sums[g] = _mm512_setzero_ps();
    for (int c = 0; c < CHUNKS; ++c) {
      __m512 value = load(key + c * LANES);
      for (int g = 0; g < GROUP; ++g)
        sums[g] = _mm512_fmadd_ps(value, _mm512_load_ps(state.query[head + g] + c * LANES), sums[g]);
    }
    for (int g = 0; g < GROUP; ++g) state.score[head + g][t] = _mm512_reduce_add_ps(sums[g]);
  }
}

// From scores to weights; what was summed before is scaled to the new maximum.
template <int CHUNKS>
inline void soften(State& state, int count, int group, float softcap) {
  for (int g = 0; g < group; ++g) {
    __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    __m512 scores = _mm512_mask_loadu_ps(lowest, first(count), state.score[g]);
    if (softcap > 0) scores = _mm512_mask_mov_ps(lowest, first(count), cap_scores(scores, softcap));
    float most = std::max(state.most[g], _mm512_reduce_max_ps(scores));
    if (most > state.most[g]) {
      float factor = std::exp(state.most[g] - most);
      state.total[g] *= factor;
      for (int c = 0; c < CHUNKS * LANES; c += LANES)
        _mm512_store_ps(state.output[g] + c,
                        _mm512_mul_ps(_mm512_load_ps(state.output[g] + c), _mm512_set1_ps(factor)));
      state.most[g] = most;
    }
    __m512 weights = _mm512_maskz_mov_ps(first(count), exponential(_mm512_sub_ps(scores, _mm512_set1_ps(most))));
    state.total[g] += _mm512_reduce_add_ps(weights);
    _mm512_store_ps(state.score[g], weights);
  }
}

template <int CHUNKS, int GROUP>
inline void add_values(State& state, const Cache& cache, const int64_t* offsets, int count, int head) {
  for (int c = 0; c < CHUNKS * LANES; c += LANES) {
    __m512 sums[GROUP];
    for (int g = 0; g < GROUP; ++g) sums[g] = _mm512_load_ps(state.output[head + g] + c);
    for (int t = 0; t < count; ++t) {
      __m512 value = load(cache.values + offsets[t] + c);
      for (int g = 0; g < GROUP; ++g)
        sums[g] = _mm512_fmadd_ps(_mm512_set1_ps(state.score[head + g][t]), value, sums[g]);
    }
    for (int g = 0; g < GROUP; ++g) _mm512_store_ps(state.output[head + g] + c, sums[g]);
  }
}

template <int CHUNKS, int GROUP>
inline void keys_of(State& state, const Cache& cache, const int64_t* offsets, int count, int& head, int group) {
  for (; head + GROUP <= group; head += GROUP) score_keys<CHUNKS, GROUP>(state, cache, offsets, count, head);
}

template <int CHUNKS, int GROUP>
inline void values_of(State& state, const Cache& cache, const int64_t* offsets, int count, int& head, int group) {
  for (; head + GROUP <= group; head += GROUP) add_values<CHUNKS, GROUP>(state, cache, offsets, count, head);
}

// Positions [start, end) of one sequence, for the query heads that share one key-value head.
struct Task {
  Cache cache;
  const bf16* query;
  bf16* output;
  int group;
  int64_t start, end;
  float scale, softcap;  // softcap 0: none
  const float* sinks;    // of the query heads, or null
};

template <int CHUNKS>
void attend(const Task& task) {
  thread_local State state;
  constexpr int DIM = CHUNKS * LANES;
  for (int g = 0; g < task.group; ++g) {
    for (int c = 0; c < DIM; c += LANES) {
      _mm512_store_ps(state.query[g] + c, _mm512_mul_ps(load(task.query + g * DIM + c), _mm512_set1_ps(task.scale)));
      _mm512_store_ps(state.output[g] + c, _mm512_setzero_ps());
    }
    state.most[g] = task.sinks ? task.sinks[g] : -std::numeric_limits<float>::infinity();
    state.total[g] = task.sinks ? 1 : 0;
  }
  for (int64_t position = task.start; position < task.end; position += LANES) {
    int count = int(std::min<int64_t>(LANES, task.end - position));
    int64_t offsets[LANES];
    for (int t = 0; t < count; ++t) offsets[t] = task.cache.offset(position + t);
    int head = 0;
    keys_of<CHUNKS, 4>(state, task.cache, offsets, count, head, task.group);
    keys_of<CHUNKS, 2>(state, task.cache, offsets, count, head, task.group);
    keys_of<CHUNKS, 1>(state, task.cache, offsets, count, head, task.group);
    soften<CHUNKS>(state, count, task.group, task.softcap);
    head = 0;
    values_of<CHUNKS, 4>(state, task.cache, offsets, count, head, task.group);
    values_of<CHUNKS, 2>(state, task.cache, offsets, count, head, task.group);
    values_of<CHUNKS, 1>(state, task.cache, offsets, count, head, task.group);
  }
  for (int g = 0; g < task.group; ++g)
    for (int c = 0; c < DIM; c += LANES)
      store(task.output + g * DIM + c,
            _mm512_div_ps(_mm512_load_ps(state.output[g] + c), _mm512_set1_ps(state.total[g])));
}

void attend(const Task& task) {
  switch (task.cache.dim) {
    case 16: return attend<1>(task);
    case 32: return attend<2>(task);
    case 64: return attend<4>(task);
    case 80: return attend<5>(task);
    case 96: return attend<6>(task);
    case 128: return attend<8>(task);
    case 256: return attend<16>(task);
  }
}

}  // namespace

extern "C" {

// One query for each sequence. query: rows `query_stride` values apart, output: [rows, heads, dim]; sequence i's row is
// rows[i], or i where rows is null. dim is one of those above; at most 16 query heads share a key-value head.
void quire_paged_decode(const bf16* query, int64_t query_stride, const bf16* keys, const bf16* values, int64_t plane,
                        const int32_t* block_table, int64_t table_stride, const int32_t* seq_lens, const int64_t* rows,
                        bf16* output, int64_t num_seqs, int64_t heads, int64_t kv_heads, int64_t dim,
                        int64_t block_size, float scale, int64_t window, float softcap,
                        const float* sinks, int threads) {
  int group = int(heads / kv_heads);
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads)
  for (int64_t sequence = 0; sequence < num_seqs; ++sequence)
    for (int64_t head = 0; head < kv_heads; ++head) {
      Cache cache{keys + head * plane, values + head * plane, block_table + sequence * table_stride, block_size, dim};
      int64_t row = rows ? rows[sequence] : sequence, end = seq_lens[sequence];
      attend({cache, query + row * query_stride + head * group * dim, output + (row * heads + head * group) * dim,
              group, window ? std::max<int64_t>(0, end - window) : 0, end, scale, softcap,
              sinks ? sinks + head * group : nullptr});
    }
}
}
