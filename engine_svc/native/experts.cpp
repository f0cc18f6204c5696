// A mixture of experts' feed-forward: rows go to the experts that were chosen for them, a row to several.
//
// The assignments are sorted by expert, so that each expert's weights are read once, for all of its rows; the products
// of all experts are cut into tasks (rows of one expert by one panel) that the threads share.
#ifdef __AVX512BF16__
#include <vector>

#include "matrix.h"

namespace {

using namespace quire_dot;

// One of an expert's two matrices, for all experts one behind the other. `steps` is of one, over k.
struct Stack {
  const uint32_t* weight;
  const float* scale;         // int8
  const int32_t* correction;  // int8
  int64_t outputs, steps;

  int64_t panels() const { return (outputs + PANEL - 1) / PANEL; }
};

struct Sorted {
  std::vector<int64_t> start;  // [experts + 1], of each one's rows
  std::vector<int64_t> token;  // [rows], whose row it is
  std::vector<float> weight;   // [rows], what its result counts
  std::vector<int64_t> place;  // [tokens, chosen], the row of each assignment
};

Sorted sort(const int64_t* experts, const float* weights, int64_t tokens, int64_t chosen, int64_t num_experts) {
  int64_t rows = tokens * chosen;
  Sorted sorted{std::vector<int64_t>(num_experts + 1), std::vector<int64_t>(rows), std::vector<float>(rows),
                std::vector<int64_t>(rows)};
  for (int64_t i = 0; i < rows; ++i) ++sorted.start[experts[i] + 1];
  for (int64_t e = 0; e < num_experts; ++e) sorted.start[e + 1] += sorted.start[e];
  std::vector<int64_t> next(sorted.start.begin(), sorted.start.end() - 1);
  for (int64_t i = 0; i < rows; ++i) {
    int64_t row = next[experts[i]]++;
    sorted.token[row] = i / chosen, sorted.weight[row] = weights[i], sorted.place[i] = row;
  }
  return sorted;
}

// Some rows of one expert.
struct Chunk {
  int64_t expert, first, last;
};

std::vector<Chunk> chunks(const Sorted& sorted) {
  std::vector<Chunk> found;
  for (int64_t e = 0; e + 1 < int64_t(sorted.start.size()); ++e)
    for (int64_t row = sorted.start[e]; row < sorted.start[e + 1]; row += ROWS_PER_TASK)
      found.push_back({e, row, std::min(sorted.start[e + 1], row + ROWS_PER_TASK)});
  return found;
}

// Every row times its own expert's matrix. Called by all threads together.
template <class Type, class Out>
void product(const std::vector<Chunk>& all, const Stack& stack, const uint32_t* input, const float* input_scale,
             Out* output) {
  int64_t panels = stack.panels(), padded = panels * PANEL;
#pragma omp for collapse(2) schedule(static)
  for (size_t c = 0; c < all.size(); ++c)
    for (int64_t index = 0; index < panels; ++index) {
      int64_t expert = all[c].expert;
      Call<Out> call{input, 0, stack.steps, stack.weight + expert * padded * stack.steps, nullptr, input_scale,
                     stack.scale ? stack.scale + expert * padded : nullptr,
                     stack.correction ? stack.correction + expert * padded : nullptr, output, stack.outputs,
                     stack.steps};
      panel<Type>(call, all[c].first, all[c].last, index, index + 1 == panels);
    }
}

// What a product reads: bfloat16 as it is, int8 quantized into `scratch` and `scale`. Called by all threads together.
template <class Type>
const uint32_t* operand(const bf16* rows, int64_t count, int64_t size, std::vector<uint8_t>& scratch,
                        std::vector<float>& scale) {
  if (Type::GROUP == Bf16::GROUP) return (const uint32_t*)rows;
#pragma omp for schedule(static)
  for (int64_t row = 0; row < count; ++row)
    scale[row] = quantize_row(rows + row * size, size, scratch.data() + row * size);
  return (const uint32_t*)scratch.data();
}

template <class Type>
void run(const bf16* input, int64_t tokens, int64_t stride, const int64_t* experts, const float* weights,
         int64_t chosen, int64_t num_experts, const Stack& gate_up, const Stack& down, bf16* output, int threads) {
  Sorted sorted = sort(experts, weights, tokens, chosen, num_experts);
  std::vector<Chunk> all = chunks(sorted);
  int64_t rows = tokens * chosen, size = gate_up.steps * Type::GROUP, inner = down.steps * Type::GROUP;
  int64_t quantized = Type::GROUP == Bf16::GROUP ? 0 : rows;
  std::vector<bf16> gathered(rows * size), both(rows * 2 * inner), active(rows * inner);
  std::vector<float> result(rows * size), scale(quantized);
  std::vector<uint8_t> scratch(quantized * std::max(size, inner));
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row)
      std::copy_n(input + sorted.token[row] * stride, size, gathered.data() + row * size);
    const uint32_t* from = operand<Type>(gathered.data(), rows, size, scratch, scale);
    product<Type>(all, gate_up, from, scale.data(), both.data());
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row)
      activate_and_multiply<false>(both.data() + row * 2 * inner, active.data() + row * inner, inner);
    from = operand<Type>(active.data(), rows, inner, scratch, scale);
    product<Type>(all, down, from, scale.data(), result.data());
#pragma omp for schedule(static)
    for (int64_t token = 0; token < tokens; ++token)
      for (int64_t i = 0; i < size; i += LANES) {
        __mmask16 mask = first(size - i);
        __m512 sum = _mm512_setzero_ps();
        for (int64_t c = 0; c < chosen; ++c) {
          int64_t row = sorted.place[token * chosen + c];
          __m512 value = _mm512_maskz_loadu_ps(mask, result.data() + row * size + i);
          sum = _mm512_fmadd_ps(value, _mm512_set1_ps(sorted.weight[row]), sum);
        }
        store(output + token * size + i, sum, mask);
      }
  }
}

}  // namespace

extern "C" {

// input bfloat16 [tokens, size], its rows `stride` values apart; experts, weights [tokens, chosen]; gate_up packed, of
// each expert [2 * inner, size], and down packed, of each [size, inner]; output [tokens, size].
void quire_experts_bf16(const bf16* input, int64_t tokens, int64_t stride, const int64_t* experts,
                        const float* weights, int64_t chosen, int64_t num_experts, const bf16* gate_up,
                        const bf16* down, bf16* output, int64_t size, int64_t inner, int threads) {
  run<Bf16>(input, tokens, stride, experts, weights, chosen, num_experts,
            {(const uint32_t*)gate_up, nullptr, nullptr, 2 * inner, size / Bf16::GROUP},
            {(const uint32_t*)down, nullptr, nullptr, size, inner / Bf16::GROUP}, output, threads);
}

// The same with int8 weights, and both products' inputs quantized row by row.
void quire_experts_int8(const bf16* input, int64_t tokens, int64_t stride, const int64_t* experts,
                        const float* weights, int64_t chosen, int64_t num_experts, const int8_t* gate_up,
                        const float* gate_up_scale, const int32_t* gate_up_correction, const int8_t* down,
                        const float* down_scale, const int32_t* down_correction, bf16* output, int64_t size,
                        int64_t inner, int threads) {
  run<Int8>(input, tokens, stride, experts, weights, chosen, num_experts,
            {(const uint32_t*)gate_up, gate_up_scale, gate_up_correction, 2 * inner, size / Int8::GROUP},
            {(const uint32_t*)down, down_scale, down_correction, size, inner / Int8::GROUP}, output, threads);
}
}
#endif
