// Products with packed weights: see matrix.h.
#include "inputs.h"
#include "parallel.h"
#include "product.h"
#include "types.h"

using namespace quire;

namespace {

constexpr int64_t ROWS_AT_ONCE = 1024;  // bounds the memory of inputs that do not stay as they came
constexpr int64_t WORTH_A_THREAD = 1 << 18;            // multiplications
constexpr int64_t WORTH_A_THREAD_TO_PREPARE = 1 << 15;  // values

// In pieces of some rows by some panels. The rows change first, so that a panel is still in a cache for all of them.
template <class Type, class Out>
void run(const Operands<Type>& call, const Result& result, int64_t rows) {
  Pieces pieces(result.outputs, call.steps * PANEL * Type::GROUP * sizeof(typename Type::Stored));
  int64_t chunks = (rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
  bool worth = rows * result.outputs * call.steps * Type::GROUP > WORTH_A_THREAD;
  parallel_for(pieces.count() * chunks, worth, [&](int64_t task) {
    int64_t chunk = task % chunks, piece = task / chunks;
    multiply_panels<Type, Out>(call, result, chunk * rows / chunks, (chunk + 1) * rows / chunks, pieces.begin(piece),
                               pieces.end(piece));
  });
}

// Rows of Value times a weight of Type.
template <class Type, class Out, class Value>
void multiply_matrix(const Value* input, int64_t rows, int64_t stride, int64_t size, const void* weight,
                     const Result& result) {
  auto packed = (const typename Type::Stored*)weight;
  int64_t steps = steps_of<Type>(size);
  if constexpr (std::is_same_v<typename Type::Input, Value>)
    if (steps * Type::GROUP == size) return run<Type, Out>({input, stride, packed, steps}, result, rows);
  for (int64_t first = 0; first < rows; first += ROWS_AT_ONCE) {
    int64_t count = std::min(ROWS_AT_ONCE, rows - first);
    Inputs<Type> inputs(count, size);
    parallel_for(count, count * size > WORTH_A_THREAD_TO_PREPARE,
                 [&](int64_t row) { inputs.prepare(row, input + (first + row) * stride, size); });
    Result part = result;
    part.output = (Out*)result.output + first * result.outputs, part.input_scale = inputs.scale.get();
    run<Type, Out>({inputs.values.get(), inputs.stride, packed, steps}, part, count);
  }
}

}  // namespace

extern "C" {

// input [rows, size], its rows `stride` values apart; bias [packed outputs], or null; output [rows, outputs], of the
// same type or, if `wide`, float32.
void quire_matrix(int type, const void* input, int64_t rows, int64_t stride, int64_t size, const void* weight,
                  const float* bias, void* output, int64_t outputs, int wide) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    auto multiply = wide ? multiply_matrix<Groups<Value>, float, Value> : multiply_matrix<Groups<Value>, Value, Value>;
    multiply((const Value*)input, rows, stride, size, weight, {output, outputs, bias});
  });
}

// The same with int8 weights; the input is quantized row by row.
void quire_matrix_int8(int type, const void* input, int64_t rows, int64_t stride, int64_t size, const int8_t* weight,
                       const float* scale, const int32_t* correction, const float* bias, void* output, int64_t outputs,
                       int wide) {
  with_type(type, [=](auto value) {
    using Value = decltype(value);
    auto multiply = wide ? multiply_matrix<Int8Groups, float, Value> : multiply_matrix<Int8Groups, Value, Value>;
    multiply((const Value*)input, rows, stride, size, weight, {output, outputs, bias, scale, correction});
  });
}
}
