// Each head's product with its own matrix (multi-head latent attention).
#include "inputs.h"
#include "parallel.h"
#include "product.h"
#include "recordable.h"
#include "types.h"

using namespace quire;

namespace {

constexpr int64_t WORTH_A_THREAD = 1 << 18;  // multiplications

// [tokens, heads, values] with strides between tokens and between heads, in values.
template <class Value>
struct Heads {
  Value* values;
  int64_t token_stride, head_stride;
};

template <class Value>
void multiply_heads(Heads<const Value> input, Heads<Value> output, int64_t tokens, int64_t heads, int64_t size,
                    int64_t outputs, const void* weights) {
  using Type = Groups<Value>;
  Packed packed{Kind::PLAIN, weights};
  Chunks<Type> chunks{tokens};
  parallel_for(heads * chunks.count, tokens * heads * size * outputs > WORTH_A_THREAD, [&](int64_t task) {
    int64_t head = task / chunks.count, chunk = task % chunks.count;
    int64_t first = chunks.begin(chunk), count = chunks.end(chunk) - first;
    Inputs<Type> inputs(count, size);
    for (int64_t row = 0; row < count; ++row)
      inputs.prepare(row, input.values + (first + row) * input.token_stride + head * input.head_stride, size);
    Result result{output.values + first * output.token_stride + head * output.head_stride, outputs, nullptr};
    result.stride = output.token_stride;
    multiply_panels<Type, Value>(operands<Type>(inputs.values.get(), inputs.stride, packed, head, outputs, size), result,
                                 0, count, 0, panels_of(outputs));
  });
}

}  // namespace

extern "C" {

// input [tokens, heads, size] to output [tokens, heads, outputs]; weights are the heads' packed matrices one after the other.
void quire_head_matrices(int type, const void* input, int64_t token_stride, int64_t head_stride, const void* weights,
                         void* output, int64_t output_token_stride, int64_t output_head_stride, int64_t tokens,
                         int64_t heads, int64_t size, int64_t outputs) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    multiply_heads<Value>({(const Value*)input, token_stride, head_stride},
                          {(Value*)output, output_token_stride, output_head_stride}, tokens, heads, size, outputs,
                          weights);
  });
}
}

RECORDABLE(head_matrices)
