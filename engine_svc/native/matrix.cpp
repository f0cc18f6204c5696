// Products with packed weights: see matrix.h.
#include "inputs.h"
#include "parallel.h"
#include "product.h"
#include "recordable.h"
#include "types.h"

using namespace quire;

namespace {

constexpr int64_t ROWS_AT_ONCE = 1024;  // bounds the memory of prepared inputs
constexpr int64_t ROWS_BYTES = 3 << 19;  // bytes of inputs that stay in a second-level cache
constexpr int64_t WORTH_A_THREAD = 1 << 18;            // multiplications
constexpr int64_t WORTH_A_THREAD_TO_PREPARE = 1 << 15;  // values

// Computes a product in pieces of some rows by some panels. If all rows fit in a second-level cache, all of them are taken
// with each panel, which then stays cached for them; otherwise, as many rows as fit are taken with all panels.
template <class Type, class Out>
void run(const Operands<Type>& call, const Result& result, int64_t rows) {
  Pieces pieces(result.outputs, call.panel_bytes);
  Chunks<Type> chunks{rows};
  int64_t bytes = chunks.height * call.stride * int64_t(sizeof(typename Type::Input));
  int64_t side_by_side = std::clamp<int64_t>(bytes ? ROWS_BYTES / bytes : 1, 1, std::max<int64_t>(1, chunks.count));
  bool worth = rows * result.outputs * call.steps * Type::GROUP > WORTH_A_THREAD;
  parallel_for_in_parts(pieces.count() * chunks.count, worth, [&](int64_t task) {
    int64_t first = task / (pieces.count() * side_by_side) * side_by_side;
    int64_t width = std::min(side_by_side, chunks.count - first), within = task - first * pieces.count();
    int64_t chunk = first + within % width, piece = within / width;
    multiply_panels<Type, Out>(call, result, chunks.begin(chunk), chunks.end(chunk), pieces.begin(piece),
                               pieces.end(piece));
  });
}

// Rows of Value times a weight of Type.
template <class Type, class Out, class Value>
void multiply_matrix(const Value* input, int64_t rows, int64_t stride, int64_t size, const Packed& weight,
                     const Result& result) {
  auto multiply = [&](const typename Type::Input* from, int64_t row_stride, const Result& part, int64_t count) {
    Operands<Type> call = operands<Type>(from, row_stride, weight, 0, result.outputs, size);
    auto sums = sum_inputs(call, count);
    run<Type, Out>(call, part, count);
  };
  const int64_t* order = weight.form.input_order;
  if constexpr (std::is_same_v<typename Type::Input, Value>) {
    bool whole = steps_of<Type>(size) * Type::GROUP == size && !order;
    if (whole && rows <= rows_as_they_come<Type>(weight.form, input, stride)) return multiply(input, stride, result, rows);
  }
  for (int64_t first = 0; first < rows; first += ROWS_AT_ONCE) {
    int64_t count = std::min(ROWS_AT_ONCE, rows - first), strips = (count + STRIP - 1) / STRIP;
    bool worth = count * size > WORTH_A_THREAD_TO_PREPARE;
    Inputs<Type> inputs(count, size);
    parallel_for(count, worth, [&](int64_t row) { inputs.prepare(row, input + (first + row) * stride, size, order); });
    if (in_strips<Type>(weight.form))
      parallel_for(strips, worth, [&](int64_t i) { inputs.arrange(i * STRIP, std::min(STRIP, count - i * STRIP)); });
    Result part = result;
    part.output = (Out*)result.output + first * result.outputs, part.input_scale = inputs.scale.get();
    multiply(inputs.values.get(), inputs.stride, part, count);
  }
}

}  // namespace

extern "C" {

// input [rows, size], rows `stride` values apart; bias [packed outputs], or null; output [rows, outputs], of the same type
// or, if `wide`, float32. With int8 weights, the input is quantized row by row.
void quire_matrix(int type, const void* input, int64_t rows, int64_t stride, int64_t size, const Packed* weight,
                  const float* bias, void* output, int64_t outputs, int wide) {
  Result result{output, outputs, bias, weight->scale, weight->correction};
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    with_groups<Value>(*weight, [=](auto groups) {
      using Type = typename decltype(groups)::Type;
      auto multiply = wide ? multiply_matrix<Type, float, Value> : multiply_matrix<Type, Value, Value>;
      multiply((const Value*)input, rows, stride, size, *weight, result);
    });
  });
}
}

RECORDABLE(matrix)
