// The pieces of a product, from sums to outputs.
#pragma once

#include "coded_wide.h"
#include "compressed.h"
#include "inputs.h"
#include "parallel.h"
#if defined(__AMX_TILE__)
#include "coded_pairs.h"
#include "compressed_amx.h"
#endif

namespace quire {

constexpr int64_t PIECE_BYTES = 128 << 10;
constexpr int64_t WORTH_A_THREAD_TO_SUM = 1 << 16;  // values

enum class Kind : int { PLAIN, INT8, CODED, COMPRESSED };

// The caller's description of a packed weight: matrices of one shape, one after the other. For int8, see also Result.
struct Packed {
  Kind kind;
  const void* weight;
  const float* scale;
  const int32_t* correction;
  CodedForm form;
  int64_t compressed_bytes;  // from one compressed matrix to the next
};

template <class T>
struct TypeOf {
  using Type = T;
};

// Calls `call` with the type of groups for the product of a weight and inputs of Value.
template <class Value, class Call>
void with_groups(const Packed& packed, const Call& call) {
  switch (packed.kind) {
    case Kind::PLAIN: return call(TypeOf<Groups<Value>>{});
    case Kind::INT8: return call(TypeOf<Int8Groups>{});
    case Kind::CODED: return call(TypeOf<CodedGroups<Value>>{});
    case Kind::COMPRESSED:
      if constexpr (COMPRESSES<Groups<Value>>) return call(TypeOf<Compressed<Groups<Value>>>{});
  }
}

inline int64_t panels_of(int64_t outputs) { return (outputs + PANEL - 1) / PANEL; }

// The operands of rows, `stride` values apart, times the `index`-th of several matrices [outputs, size].
template <class Type>
Operands<Type> operands(const typename Type::Input* input, int64_t stride, const Packed& packed, int64_t index,
                        int64_t outputs, int64_t size) {
  int64_t steps = steps_of<Type>(size), bytes = steps * PANEL * Type::GROUP * sizeof(typename Type::Stored);
  if constexpr (IS_CODED<Type>) bytes = steps / CHUNK * packed.form.chunk_bytes();
  int64_t matrix_bytes = panels_of(outputs) * bytes;
  if constexpr (IS_COMPRESSED<Type>) bytes = compressed_panel_bytes(steps), matrix_bytes = packed.compressed_bytes;
  return {input, stride, (const char*)packed.weight + index * matrix_bytes, steps, bytes, &packed.form};
}

// Sums the inputs of each span of a product's rows, if offsets are multiplied by these sums. `call` points into the
// returned memory.
template <class Type>
std::unique_ptr<float[]> sum_inputs(Operands<Type>& call, int64_t rows) {
  if constexpr (IS_CODED<Type>)
    if (scales_sums<typename Type::Wide>(call.form->codes) && call.form->offset_type >= 0) {
      int64_t span = call.form->span;
      std::unique_ptr<float[]> sums(new float[call.steps / span * rows]);
      call.input_sums = sums.get(), call.rows = rows;
      parallel_for(rows, rows * call.steps > WORTH_A_THREAD_TO_SUM, [&](int64_t row) {
        sum_spans_of(call.input + row * call.stride, call.steps, span, rows, sums.get() + row);
      });
      return sums;
    }
  return nullptr;
}

// Converts the sums of a product to output [rows, outputs]. The packed outputs have a bias (null: none) and, for int8, a
// scale and a correction that undoes the inputs' OFFSET; input_scale is that of the rows.
struct Result {
  void* output;
  int64_t outputs;
  const float* bias;
  const float* scale = nullptr;
  const int32_t* correction = nullptr;
  const float* input_scale = nullptr;
  int64_t stride = outputs;  // of the output's rows, in values

  template <class Out>
  void write(const float* sums, int64_t row, int64_t column) const {
    for (int n = 0; n < PANEL && column + n < outputs; n += LANES)
      write<Out>(load(sums + n) + added(column + n), row, column + n);
  }

  template <class Out>
  void write(const int32_t* sums, int64_t row, int64_t column) const {
    int32_t exact[PANEL];
    for (int n = 0; n < PANEL; ++n) exact[n] = sums[n] - correction[column + n];
    for (int n = 0; n < PANEL && column + n < outputs; n += LANES) {
      Floats factor = all(input_scale[row]) * load(scale + column + n);
      write<Out>(fma(to_floats(load_ints(exact + n)), factor, added(column + n)), row, column + n);
    }
  }

 private:
  Floats added(int64_t column) const { return bias ? load(bias + column) : zero(); }

  template <class Out>
  void write(Floats values, int64_t row, int64_t column) const {
    store((Out*)output + row * stride + column, values, outputs - column);
  }
};

// Rows [first, last), at most ROWS, times panels [begin, end). Compiled once for all kernels, in product.cpp.
template <class Type, class Out>
void multiply_panels(const Operands<Type>& call, const Result& result, int64_t first, int64_t last, int64_t begin,
                     int64_t end);

// Divides rows into chunks of about equal size, at most ROWS; all but the last have a multiple of 16.
template <class Type>
struct Chunks {
  int64_t rows, count = (rows + ROWS<Type> - 1) / ROWS<Type>;
  int64_t height = count ? ((rows + count - 1) / count + 15) / 16 * 16 : 0;

  int64_t begin(int64_t chunk) const { return chunk * height; }
  int64_t end(int64_t chunk) const { return std::min(rows, (chunk + 1) * height); }
};

// Divides a matrix's panels into pieces of PIECE_BYTES, or of one panel if that is larger.
struct Pieces {
  int64_t panels, width;

  Pieces(int64_t outputs, int64_t panel_bytes)
      : panels(panels_of(outputs)), width(std::max<int64_t>(1, PIECE_BYTES / panel_bytes)) {}
  int64_t count() const { return (panels + width - 1) / width; }
  int64_t begin(int64_t piece) const { return piece * width; }
  int64_t end(int64_t piece) const { return std::min(panels, (piece + 1) * width); }
};

}  // namespace quire
