// Decoding over the paged cache: one query per sequence, keys and values read once, where they lie.
//
// A task is one sequence and one key-value head, with all the query heads that share it: softmax runs along as the keys
// come (Milakov and Gimelshein 2018), 16 keys at a time.
#ifdef __AVX512BF16__
#include <algorithm>
#include <cmath>
#include <limits>

#include "paged.h"

using namespace quire_dot;

namespace {

constexpr int MOST_GROUP = 16;
constexpr int CHUNK = 2 * LANES;  // values of bfloat16 in a register

struct State {
  alignas(64) bf16 query[MOST_GROUP][MOST_DIM];
  alignas(64) float output[MOST_GROUP][MOST_DIM];  // in chunks of 32, as add_values leaves them
  alignas(64) float total[MOST_GROUP][LANES];      // of the weights, by the key's place among 16
  alignas(64) bf16 weights[MOST_GROUP][LANES];
  float most[MOST_GROUP];
};

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

// Where 16 keys lie; behind the last one it stands again.
struct Sixteen {
  int64_t offsets[LANES];
  int count;

  Sixteen(const Task& task, int64_t position) : count(int(std::min<int64_t>(LANES, task.end - position))) {
    task.cache.locate(position, count, offsets);
    for (int t = count; t < LANES; ++t) offsets[t] = offsets[count - 1];
  }
};

template <int DIM>
inline __m512i load_chunk(const bf16* from, int c) {
  if (DIM % CHUNK == 0 || c < DIM / CHUNK) return _mm512_loadu_si512(from + c * CHUNK);
  return _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i*)(from + c * CHUNK)));
}

// 16 vectors to the vector of their sums.
inline __m512 sum_each(__m512 (&sums)[LANES]) {
  __m512 eight[8], four[4];
  for (int i = 0; i < 8; ++i)
    eight[i] = _mm512_add_ps(_mm512_unpacklo_ps(sums[2 * i], sums[2 * i + 1]),
                             _mm512_unpackhi_ps(sums[2 * i], sums[2 * i + 1]));
  for (int i = 0; i < 4; ++i) {
    __m512d one = _mm512_castps_pd(eight[2 * i]), other = _mm512_castps_pd(eight[2 * i + 1]);
    four[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(one, other)),
                            _mm512_castpd_ps(_mm512_unpackhi_pd(one, other)));
  }
  auto halves = [](__m512 one, __m512 other) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(one, other, 0x88), _mm512_shuffle_f32x4(one, other, 0xdd));
  };
  return halves(halves(four[0], four[1]), halves(four[2], four[3]));
}

// The scores of 16 keys for one query head. The first head fetches the next 16 keys meanwhile.
template <int DIM, bool FETCH>
inline __m512 score_keys(const Task& task, const bf16* query, const Sixteen& keys, const Sixteen& next) {
  constexpr int CHUNKS = (DIM + CHUNK - 1) / CHUNK;
  __m512 sums[LANES];
#pragma GCC unroll 16
  for (int t = 0; t < LANES; ++t) sums[t] = _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int c = 0; c < CHUNKS; ++c) {
    __m512i value = load_chunk<DIM>(query, c);
#pragma GCC unroll 16
    for (int t = 0; t < LANES; ++t) {
      if (FETCH) _mm_prefetch(task.cache.keys + next.offsets[t] + c * CHUNK, _MM_HINT_T0);
      sums[t] = _mm512_dpbf16_ps(sums[t], (__m512bh)value,
                                 (__m512bh)load_chunk<DIM>(task.cache.keys + keys.offsets[t], c));
    }
  }
  return sum_each(sums);
}

// From one head's scores to weights; what was summed before is scaled to the new maximum.
template <int DIM>
inline void soften(const Task& task, State& state, int g, __m512 scores, int count) {
  __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  scores = _mm512_mul_ps(scores, _mm512_set1_ps(task.scale));
  if (task.softcap > 0) scores = cap_scores(scores, task.softcap);
  scores = _mm512_mask_mov_ps(lowest, first(count), scores);
  __m512 total = _mm512_load_ps(state.total[g]);
  float highest = _mm512_reduce_max_ps(scores);
  if (highest > state.most[g]) {
    __m512 factor = _mm512_set1_ps(std::exp(state.most[g] - highest));
    total = _mm512_mul_ps(total, factor);
    for (int c = 0; c < (DIM + CHUNK - 1) / CHUNK * CHUNK; c += LANES)
      _mm512_store_ps(state.output[g] + c, _mm512_mul_ps(_mm512_load_ps(state.output[g] + c), factor));
    state.most[g] = highest;
  }
  __m512 weights = exponential(_mm512_sub_ps(scores, _mm512_set1_ps(state.most[g])));
  weights = _mm512_maskz_mov_ps(first(count), weights);
  _mm512_store_ps(state.total[g], _mm512_add_ps(total, weights));
  store(state.weights[g], weights);
}

// The keys' values, by the weights of GROUP heads; the first ones fetch the next values meanwhile. Two keys' values are interleaved in each quarter of a register, so that
// of 32 outputs, each quarter's lower four stand in one sum and its upper four in another.
template <int DIM, int GROUP>
inline void add_values(const Task& task, State& state, const Sixteen& keys, const Sixteen& next, int head) {
  for (int c = 0; c < (DIM + CHUNK - 1) / CHUNK; ++c) {
    __m512 low[GROUP], high[GROUP];
    for (int g = 0; g < GROUP; ++g) {
      low[g] = _mm512_load_ps(state.output[head + g] + c * CHUNK);
      high[g] = _mm512_load_ps(state.output[head + g] + c * CHUNK + LANES);
    }
    for (int t = 0; t < keys.count; t += 2) {
      if (head == 0) {
        _mm_prefetch(task.cache.values + next.offsets[t] + c * CHUNK, _MM_HINT_T0);
        _mm_prefetch(task.cache.values + next.offsets[t + 1] + c * CHUNK, _MM_HINT_T0);
      }
      __m512i one = load_chunk<DIM>(task.cache.values + keys.offsets[t], c);
      __m512i other = load_chunk<DIM>(task.cache.values + keys.offsets[t + 1], c);
      __m512bh lower = (__m512bh)_mm512_unpacklo_epi16(one, other), upper = (__m512bh)_mm512_unpackhi_epi16(one, other);
      for (int g = 0; g < GROUP; ++g) {
        __m512bh weights = (__m512bh)_mm512_set1_epi32(*(const int*)(state.weights[head + g] + t));
        low[g] = _mm512_dpbf16_ps(low[g], lower, weights);
        high[g] = _mm512_dpbf16_ps(high[g], upper, weights);
      }
    }
    for (int g = 0; g < GROUP; ++g) {
      _mm512_store_ps(state.output[head + g] + c * CHUNK, low[g]);
      _mm512_store_ps(state.output[head + g] + c * CHUNK + LANES, high[g]);
    }
  }
}

template <int DIM, int GROUP>
inline void add_values_of(const Task& task, State& state, const Sixteen& keys, const Sixteen& next, int& head) {
  for (; head + GROUP <= task.group; head += GROUP) add_values<DIM, GROUP>(task, state, keys, next, head);
}

// What was summed, in its order, over the total.
template <int DIM>
void finish(const Task& task, State& state, int g) {
  float total = _mm512_reduce_add_ps(_mm512_load_ps(state.total[g]));
  if (task.sinks) total += std::exp(task.sinks[g] - state.most[g]);
  __m512 divisor = _mm512_set1_ps(total);
  __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  for (int c = 0; c < DIM; c += LANES) {
    const float* chunk = state.output[g] + c / CHUNK * CHUNK;
    __m512i half = _mm512_add_epi32(order, _mm512_set1_epi32(c % CHUNK ? LANES / 2 : 0));
    __m512 sums = _mm512_permutex2var_ps(_mm512_load_ps(chunk), half, _mm512_load_ps(chunk + LANES));
    store(task.output + g * DIM + c, _mm512_div_ps(sums, divisor));
  }
}

template <int DIM>
void attend(const Task& task) {
  static thread_local State state;
  for (int g = 0; g < task.group; ++g) {
    std::copy_n(task.query + g * DIM, DIM, state.query[g]);
    std::fill_n(state.output[g], MOST_DIM, 0.0f);
    std::fill_n(state.total[g], LANES, 0.0f);
    state.most[g] = task.sinks ? task.sinks[g] : -std::numeric_limits<float>::infinity();
  }
  Sixteen next(task, task.start);
  for (int64_t position = task.start; position < task.end; position += LANES) {
    Sixteen keys = next;
    if (position + LANES < task.end) next = Sixteen(task, position + LANES);
    soften<DIM>(task, state, 0, score_keys<DIM, true>(task, state.query[0], keys, next), keys.count);
    for (int g = 1; g < task.group; ++g)
      soften<DIM>(task, state, g, score_keys<DIM, false>(task, state.query[g], keys, next), keys.count);
    int head = 0;
    add_values_of<DIM, 4>(task, state, keys, next, head);
    add_values_of<DIM, 2>(task, state, keys, next, head);
    add_values_of<DIM, 1>(task, state, keys, next, head);
  }
  for (int g = 0; g < task.group; ++g) finish<DIM>(task, state, g);
}

void attend(const Task& task) {
  switch (task.cache.dim) {
    case 16: return attend<16>(task);
    case 32: return attend<32>(task);
    case 64: return attend<64>(task);
    case 80: return attend<80>(task);
    case 96: return attend<96>(task);
    case 128: return attend<128>(task);
    case 256: return attend<256>(task);
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
  for (int64_t head = 0; head < kv_heads; ++head)
    for (int64_t sequence = 0; sequence < num_seqs; ++sequence) {
      Cache cache{keys + head * plane, values + head * plane, block_table + sequence * table_stride, block_size, dim};
      int64_t row = rows ? rows[sequence] : sequence, end = seq_lens[sequence];
      attend({cache, query + row * query_stride + head * group * dim, output + (row * heads + head * group) * dim,
              group, window ? std::max<int64_t>(0, end - window) : 0, end, scale, softcap,
              sinks ? sinks + head * group : nullptr});
    }
}
}
#endif
