// The feed-forward layers of a mixture of experts: each token goes through several chosen experts.
//
// Assignments are sorted by expert, so that each expert's weights are read once for all of its rows. The products of all
// experts are divided into pieces (rows of one expert by some panels) that the threads share.
#include <vector>

#include "activation.h"
#include "inputs.h"
#include "low_rank.h"
#include "parallel.h"
#include "product.h"
#include "recordable.h"
#include "types.h"

using namespace quire;

// The adapters of one of the experts' two products; see low_rank.h.
struct LowRank {
  const void *down, *up;
  const int32_t* ranks;
  const int64_t* starts;
  int64_t parts, rank;
};

// The adapter of each token, or -1. Groups are numbered adapter * experts + expert.
struct Adapters {
  const int32_t* slots;  // null: no token has an adapter
  int type;
  LowRank gate_up, down;
};

// The properties of experts other than their weights. Biases are those of each expert's packed outputs, or null.
struct ExpertsForm {
  Activation activation;
  int weighs_inputs, is_gated;
  const float *gate_up_bias, *down_bias;
  Adapters adapters;
};

namespace {

constexpr int64_t TOKENS_AT_ONCE = 1024;  // bounds the memory of intermediate results

// One of the two matrices [outputs, size] of all experts. The bias is that of each expert's packed outputs, or null.
struct Stack {
  const Packed& packed;
  const float* bias;
  int64_t size, outputs;
};

// The arguments of a call except for its tokens.
struct Layer {
  int64_t chosen, experts, size, inner, wide;  // wide: outputs of the first product
  const ExpertsForm& form;
  Stack gate_up, down;
};

struct Sorted {
  std::vector<int64_t> start;  // [experts + 1], first row of each expert
  std::vector<int64_t> token;  // [rows], token of each row
  std::vector<float> weight;   // [rows], weight of each row's result
  std::vector<int64_t> place;  // [tokens, chosen], row of each assignment; -1 without an expert
};

Sorted sort(const int64_t* experts, const float* weights, int64_t tokens, const Layer& layer) {
  int64_t rows = tokens * layer.chosen;
  Sorted sorted{std::vector<int64_t>(layer.experts + 1), std::vector<int64_t>(rows), std::vector<float>(rows),
                std::vector<int64_t>(rows)};
  for (int64_t i = 0; i < rows; ++i)
    if (experts[i] >= 0) ++sorted.start[experts[i] + 1];
  for (int64_t e = 0; e < layer.experts; ++e) sorted.start[e + 1] += sorted.start[e];
  std::vector<int64_t> next(sorted.start.begin(), sorted.start.end() - 1);
  for (int64_t i = 0; i < rows; ++i) {
    if (experts[i] < 0) {
      sorted.place[i] = -1;
      continue;
    }
    int64_t row = next[experts[i]]++;
    sorted.token[row] = i / layer.chosen, sorted.weight[row] = weights[i], sorted.place[i] = row;
  }
  return sorted;
}

// Some rows of one expert.
struct Chunk {
  int64_t expert, first, last;
};

// All rows in chunks of up to `most` rows of one expert.
std::vector<Chunk> chunks(const Sorted& sorted, int64_t most) {
  std::vector<Chunk> found;
  for (int64_t e = 0; e + 1 < int64_t(sorted.start.size()); ++e)
    for (int64_t row = sorted.start[e]; row < sorted.start[e + 1]; row += most)
      found.push_back({e, row, std::min(sorted.start[e + 1], row + most)});
  return found;
}

// Prepares the rows of a product: calls prepare(row, order) for each, with the order of its expert's inputs.
template <class Type, class Prepare>
void prepare_rows(const Sorted& sorted, const Stack& stack, Inputs<Type>& inputs, const Prepare& prepare) {
  std::vector<Chunk> strips = chunks(sorted, STRIP);
  parallel_for(int64_t(strips.size()), [&](int64_t strip) {
    auto [expert, first, last] = strips[strip];
    const int64_t* order = stack.packed.form.input_order;
    for (int64_t row = first; row < last; ++row) prepare(row, order ? order + expert * stack.size : nullptr);
    if (in_strips<Type>(stack.packed.form)) inputs.arrange(first, last - first);
  });
}

// Every row times its own expert's matrix: output [rows, outputs].
template <class Type, class Out>
void multiply_stack(const Sorted& sorted, const Stack& stack, const Inputs<Type>& inputs, Out* output) {
  auto of_expert = [&](int64_t expert) {
    return operands<Type>(inputs.values.get(), inputs.stride, stack.packed, expert, stack.outputs, stack.size);
  };
  Operands<Type> first_expert = of_expert(0);
  auto sums = sum_inputs(first_expert, sorted.start.back());
  std::vector<Chunk> all = chunks(sorted, ROWS<Type>);
  Pieces pieces(stack.outputs, first_expert.panel_bytes);
  parallel_for(int64_t(all.size()) * pieces.count(), [&](int64_t task) {
    auto [expert, first, last] = all[task / pieces.count()];
    int64_t piece = task % pieces.count(), padded = pieces.panels * PANEL;
    Result result{output, stack.outputs, stack.bias, stack.packed.scale, stack.packed.correction, inputs.scale.get()};
    if (stack.bias) result.bias += expert * padded;
    if (stack.packed.scale) result.scale += expert * padded, result.correction += expert * padded;
    Operands<Type> call = of_expert(expert);
    call.input_sums = sums.get(), call.rows = first_expert.rows;
    multiply_panels<Type, Out>(call, result, first, last, pieces.begin(piece), pieces.end(piece));
  });
}

// A token's values times the routing weight of a row's expert.
template <class Value>
void weigh(const Value* values, const Sorted& sorted, int64_t row, int64_t size, Value* output) {
  Floats weight = all(sorted.weight[row]);
  for (int64_t i = 0; i < size; i += LANES) store(output + i, load(values + i, size - i) * weight, size - i);
}

// Adds up a token's results times their weights, in the order in which its experts were chosen.
template <class Value>
void add_results(const float* results, const Sorted& sorted, int64_t token, const Layer& layer, Value* output) {
  for (int64_t i = 0; i < layer.size; i += LANES) {
    Floats sum = zero();
    for (int64_t c = 0; c < layer.chosen; ++c) {
      int64_t row = sorted.place[token * layer.chosen + c];
      if (row < 0) continue;
      sum = fma(load(results + row * layer.size + i, layer.size - i), all(sorted.weight[row]), sum);
    }
    store(output + i, sum, layer.size - i);
  }
}

template <class Value>
constexpr int TYPE = std::is_same_v<Value, float> ? 0 : std::is_same_v<Value, bf16> ? 1 : 2;

// The rows with adapters, in tiles of one expert and adapter each.
struct AdaptedRows {
  std::vector<int32_t> rows, groups;

  AdaptedRows(const Sorted& sorted, const int32_t* slots) {
    int32_t experts = int32_t(sorted.start.size()) - 1;
    std::vector<std::pair<int32_t, int32_t>> found;  // adapter, row
    for (int32_t e = 0; slots && e < experts; ++e) {
      found.clear();
      for (int64_t row = sorted.start[e]; row < sorted.start[e + 1]; ++row)
        if (int32_t slot = slots[sorted.token[row]]; slot >= 0) found.emplace_back(slot, int32_t(row));
      std::sort(found.begin(), found.end());
      for (size_t i = 0, in_tile = 0; i < found.size(); ++i, ++in_tile) {
        int32_t group = found[i].first * experts + e;
        if (in_tile % LOW_RANK_ROWS == 0 || groups.back() != group) {
          groups.push_back(group), in_tile = 0;
          rows.resize(groups.size() * LOW_RANK_ROWS, -1);
        }
        rows[(groups.size() - 1) * LOW_RANK_ROWS + in_tile] = found[i].second;
      }
    }
  }

  // Adds to output[row] the adapter's product with input[source[row]], or with input[row] if source is null. Input rows are
  // `stride` values apart.
  template <class Value, class Out>
  void add(const LowRank& adapters, int type, const Value* input, int64_t stride, int64_t size, const int64_t* source,
           Out* output, int64_t output_stride) const {
    if (groups.empty()) return;
    std::vector<int32_t> sources(rows);
    for (int32_t& row : sources)
      if (source && row >= 0) row = int32_t(source[row]);
    int64_t tiles = int64_t(groups.size());
    std::unique_ptr<float[]> sums(new float[tiles * LOW_RANK_ROWS * adapters.parts * adapters.rank]);
    quire_shrink(TYPE<Value>, type, input, stride, adapters.down, adapters.ranks, adapters.parts, adapters.rank, size,
                 sources.data(), groups.data(), tiles, 1, sums.get());
    quire_expand(TYPE<Out>, type, sums.get(), adapters.up, adapters.ranks, adapters.starts, adapters.parts,
                 adapters.rank, rows.data(), groups.data(), tiles, 1, output, output_stride);
  }
};

// The sorted rows of some tokens, and those with adapters among them.
struct Batch {
  Sorted sorted;
  AdaptedRows adapted;
  int64_t rows;
};

// The first product: output [rows, wide] of input [tokens, size], whose rows are `stride` values apart.
template <class Type, class Value>
void multiply_gate_up(const Value* input, int64_t stride, const Layer& layer, Batch& batch, Value* output) {
  int64_t size = layer.size;
  Sorted& sorted = batch.sorted;
  const Adapters& adapters = layer.form.adapters;
  Inputs<Type> inputs(batch.rows, size);
  std::unique_ptr<Value[]> weighed(new Value[layer.form.weighs_inputs ? batch.rows * size : 0]);
  prepare_rows(sorted, layer.gate_up, inputs, [&](int64_t row, const int64_t* order) {
    const Value* values = input + sorted.token[row] * stride;
    if (layer.form.weighs_inputs) {
      weigh(values, sorted, row, size, weighed.get() + row * size);
      values = weighed.get() + row * size, sorted.weight[row] = 1;
    }
    inputs.prepare(row, values, size, order);
  });
  multiply_stack(sorted, layer.gate_up, inputs, output);
  auto add = [&](const Value* from, int64_t from_stride, const int64_t* sources) {
    batch.adapted.add(adapters.gate_up, adapters.type, from, from_stride, size, sources, output, layer.wide);
  };
  layer.form.weighs_inputs ? add(weighed.get(), size, nullptr) : add(input, stride, sorted.token.data());
}

// The activation, in place, and the second product: output [rows, size] of both [rows, wide].
template <class Type, class Value>
void multiply_down(Value* both, const Layer& layer, const Batch& batch, float* output) {
  int64_t inner = layer.inner;
  const Adapters& adapters = layer.form.adapters;
  Inputs<Type> inputs(batch.rows, inner);
  prepare_rows(batch.sorted, layer.down, inputs, [&](int64_t row, const int64_t* order) {
    Value* active = both + row * layer.wide;
    if (layer.form.is_gated) activate_and_multiply(layer.form.activation, active, active, inner);
    else activate(layer.form.activation.gate, active, inner);
    inputs.prepare(row, active, inner, order);
  });
  multiply_stack(batch.sorted, layer.down, inputs, output);
  batch.adapted.add(adapters.down, adapters.type, both, layer.wide, inner, nullptr, output, layer.size);
}

template <class Value>
void run(const Value* input, int64_t tokens, int64_t stride, const int64_t* experts, const float* weights,
         const int32_t* slots, const Layer& layer, Value* output) {
  Sorted sorted = sort(experts, weights, tokens, layer);
  AdaptedRows adapted(sorted, slots);
  Batch batch{std::move(sorted), std::move(adapted), tokens * layer.chosen};
  std::unique_ptr<Value[]> both(new Value[batch.rows * layer.wide]);
  std::unique_ptr<float[]> results(new float[batch.rows * layer.size]);
  with_groups<Value>(layer.gate_up.packed, [&](auto groups) {
    multiply_gate_up<typename decltype(groups)::Type>(input, stride, layer, batch, both.get());
  });
  with_groups<Value>(layer.down.packed, [&](auto groups) {
    multiply_down<typename decltype(groups)::Type>(both.get(), layer, batch, results.get());
  });
  parallel_for(tokens, [&](int64_t token) {
    add_results(results.get(), batch.sorted, token, layer, output + token * layer.size);
  });
}

}  // namespace

extern "C" {

// input [tokens, size], rows `stride` values apart; experts and weights [tokens, chosen], expert -1 is none. gate_up is
// packed, for each expert [2 * inner, size], or [inner, size] without gates; down is packed, for each expert
// [size, inner]. output [tokens, size]. Inputs of products with int8 weights are quantized row by row.
void quire_experts(int type, const void* input, int64_t tokens, int64_t stride, const int64_t* experts,
                   const float* weights, int64_t chosen, int64_t num_experts, const Packed* gate_up, const Packed* down,
                   void* output, int64_t size, int64_t inner, const ExpertsForm* form) {
  int64_t wide = form->is_gated ? 2 * inner : inner;
  Layer layer{chosen, num_experts, size, inner, wide, *form, {*gate_up, form->gate_up_bias, size, wide},
              {*down, form->down_bias, inner, size}};
  with_type(type, [&](auto value) {
    using Value = decltype(value);
    for (int64_t token = 0; token < tokens; token += TOKENS_AT_ONCE)
      run((const Value*)input + token * stride, std::min(TOKENS_AT_ONCE, tokens - token), stride,
          experts + token * chosen, weights + token * chosen,
          form->adapters.slots ? form->adapters.slots + token : nullptr, layer, (Value*)output + token * size);
  });
}
}

RECORDABLE(experts)
