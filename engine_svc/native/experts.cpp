// A mixture of experts' feed-forward: rows go to the experts that were chosen for them, a row to several.
//
// The assignments are sorted by expert, so that each expert's weights are read once, for all of its rows; the products
// of all experts are cut into pieces (rows of one expert by some panels) that the threads share.
#include <vector>

#include "activation.h"
#include "inputs.h"
#include "parallel.h"
#include "product.h"
#include "types.h"

using namespace quire;

// What experts are like, beside their weights; the biases are of the packed outputs of each, or null.
struct ExpertsForm {
  Activation activation;
  int weighs_inputs;
  const float *gate_up_bias, *down_bias;
};

namespace {

constexpr int64_t TOKENS_AT_ONCE = 1024;  // bounds the memory of what is between the products

// One of an expert's two matrices, for all experts one behind the other.
struct Stack {
  const void* weight;
  const float* bias;
  const float* scale = nullptr;         // int8
  const int32_t* correction = nullptr;  // int8
};

// What a call is given, but its tokens.
struct Layer {
  int64_t chosen, experts, size, inner;
  const ExpertsForm& form;
  Stack gate_up, down;
};

struct Sorted {
  std::vector<int64_t> start;  // [experts + 1], of each one's rows
  std::vector<int64_t> token;  // [rows], whose row it is
  std::vector<float> weight;   // [rows], what its result counts
  std::vector<int64_t> place;  // [tokens, chosen], the row of each assignment
};

Sorted sort(const int64_t* experts, const float* weights, int64_t tokens, const Layer& layer) {
  int64_t rows = tokens * layer.chosen;
  Sorted sorted{std::vector<int64_t>(layer.experts + 1), std::vector<int64_t>(rows), std::vector<float>(rows),
                std::vector<int64_t>(rows)};
  for (int64_t i = 0; i < rows; ++i) ++sorted.start[experts[i] + 1];
  for (int64_t e = 0; e < layer.experts; ++e) sorted.start[e + 1] += sorted.start[e];
  std::vector<int64_t> next(sorted.start.begin(), sorted.start.end() - 1);
  for (int64_t i = 0; i < rows; ++i) {
    int64_t row = next[experts[i]]++;
    sorted.token[row] = i / layer.chosen, sorted.weight[row] = weights[i], sorted.place[i] = row;
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

// Every row times its own expert's matrix: output [rows, outputs].
template <class Type, class Out>
void multiply_stack(const std::vector<Chunk>& all, const Stack& stack, const Inputs<Type>& inputs, Out* output,
                    int64_t outputs) {
  Pieces pieces(outputs, PANEL * inputs.stride * sizeof(typename Type::Stored));
  int64_t padded = pieces.panels * PANEL;
  parallel_for(int64_t(all.size()) * pieces.count(), [&](int64_t task) {
    auto [expert, first, last] = all[task / pieces.count()];
    int64_t piece = task % pieces.count();
    auto weight = (const typename Type::Stored*)stack.weight + expert * padded * inputs.stride;
    Result result{output, outputs, stack.bias, stack.scale, stack.correction, inputs.scale.get()};
    if (stack.bias) result.bias += expert * padded;
    if (stack.scale) result.scale += expert * padded, result.correction += expert * padded;
    multiply_panels<Type, Out>({inputs.values.get(), inputs.stride, weight, inputs.stride / Type::GROUP}, result, first,
                               last, pieces.begin(piece), pieces.end(piece));
  });
}

// A token's values times what they count for the expert of a row.
template <class Value>
void weigh(const Value* values, const Sorted& sorted, int64_t row, int64_t size, Value* output) {
  Floats weight = all(sorted.weight[row]);
  for (int64_t i = 0; i < size; i += LANES) store(output + i, load(values + i, size - i) * weight, size - i);
}

// A token's results, each as it counts, in the order in which its experts were chosen.
template <class Value>
void add_results(const float* results, const Sorted& sorted, int64_t token, const Layer& layer, Value* output) {
  for (int64_t i = 0; i < layer.size; i += LANES) {
    Floats sum = zero();
    for (int64_t c = 0; c < layer.chosen; ++c) {
      int64_t row = sorted.place[token * layer.chosen + c];
      sum = fma(load(results + row * layer.size + i, layer.size - i), all(sorted.weight[row]), sum);
    }
    store(output + i, sum, layer.size - i);
  }
}

template <class Type, class Value>
void run(const Value* input, int64_t tokens, int64_t stride, const int64_t* experts, const float* weights,
         const Layer& layer, Value* output) {
  Sorted sorted = sort(experts, weights, tokens, layer);
  std::vector<Chunk> all = chunks(sorted);
  int64_t rows = tokens * layer.chosen, size = layer.size, inner = layer.inner;
  Inputs<Type> first(rows, size), second(rows, inner);
  std::unique_ptr<Value[]> both(new Value[rows * 2 * inner]);
  std::unique_ptr<float[]> results(new float[rows * size]);
  std::unique_ptr<Value[]> weighed(new Value[layer.form.weighs_inputs ? rows * size : 0]);
  parallel_for(rows, [&](int64_t row) {
    const Value* values = input + sorted.token[row] * stride;
    if (layer.form.weighs_inputs) {
      weigh(values, sorted, row, size, weighed.get() + row * size);
      values = weighed.get() + row * size, sorted.weight[row] = 1;
    }
    first.prepare(row, values, size);
  });
  multiply_stack<Type>(all, layer.gate_up, first, both.get(), 2 * inner);
  parallel_for(rows, [&](int64_t row) {
    Value* active = both.get() + row * 2 * inner;
    activate_and_multiply(layer.form.activation, active, active, inner);
    second.prepare(row, active, inner);
  });
  multiply_stack<Type>(all, layer.down, second, results.get(), size);
  parallel_for(tokens, [&](int64_t token) { add_results(results.get(), sorted, token, layer, output + token * size); });
}

template <class Type, class Value>
void run_all(const void* input, int64_t tokens, int64_t stride, const int64_t* experts, const float* weights,
             const Layer& layer, void* output) {
  for (int64_t first = 0; first < tokens; first += TOKENS_AT_ONCE)
    run<Type>((const Value*)input + first * stride, std::min(TOKENS_AT_ONCE, tokens - first), stride,
              experts + first * layer.chosen, weights + first * layer.chosen, layer,
              (Value*)output + first * layer.size);
}

}  // namespace

extern "C" {

// input [tokens, size], its rows `stride` values apart; experts, weights [tokens, chosen]; gate_up packed, of each
// expert [2 * inner, size], and down packed, of each [size, inner]; output [tokens, size].
void quire_experts(int type, const void* input, int64_t tokens, int64_t stride, const int64_t* experts,
                   const float* weights, int64_t chosen, int64_t num_experts, const void* gate_up, const void* down,
                   void* output, int64_t size, int64_t inner, const ExpertsForm* form) {
  Layer layer{chosen, num_experts, size, inner, *form, {gate_up, form->gate_up_bias}, {down, form->down_bias}};
  with_type(type, [&](auto value) {
    using Value = decltype(value);
    run_all<Groups<Value>, Value>(input, tokens, stride, experts, weights, layer, output);
  });
}

// The same with int8 weights, and both products' inputs quantized row by row.
void quire_experts_int8(int type, const void* input, int64_t tokens, int64_t stride, const int64_t* experts,
                        const float* weights, int64_t chosen, int64_t num_experts, const int8_t* gate_up,
                        const float* gate_up_scale, const int32_t* gate_up_correction, const int8_t* down,
                        const float* down_scale, const int32_t* down_correction, void* output, int64_t size,
                        int64_t inner, const ExpertsForm* form) {
  Layer layer{chosen, num_experts, size, inner, *form, {gate_up, form->gate_up_bias, gate_up_scale, gate_up_correction},
              {down, form->down_bias, down_scale, down_correction}};
  with_type(type, [&](auto value) {
    run_all<Int8Groups, decltype(value)>(input, tokens, stride, experts, weights, layer, output);
  });
}
}
