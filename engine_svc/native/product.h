// A product's pieces, from sums to outputs.
#pragma once

#include "matrix.h"
#if defined(__AMX_TILE__)
#include "matrix_amx.h"
#endif

namespace quire {

constexpr int64_t PIECE_BYTES = 128 << 10;

// What the sums of a product become: output [rows, outputs]. The others are of the packed outputs: bias (null: none),
// and of int8 what 1 stands for, and what undoes the inputs' OFFSET; input_scale is of the rows.
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

// Rows [first, last), at most ROWS_PER_TASK, times panels [begin, end).
template <class Type, class Out>
void multiply_panels(const Operands<Type>& call, const Result& result, int64_t first, int64_t last, int64_t begin,
                     int64_t end) {
  alignas(LINE) typename Type::Total sums[ROWS_PER_TASK * PANEL];
  for (int64_t index = begin; index < end; ++index) {
    sum_panel(call, first, last, index, sums);
    for (int64_t row = first; row < last; ++row) result.write<Out>(sums + (row - first) * PANEL, row, index * PANEL);
  }
}

// A matrix's panels, in pieces of PIECE_BYTES or of one.
struct Pieces {
  int64_t panels, width;

  Pieces(int64_t outputs, int64_t panel_bytes)
      : panels((outputs + PANEL - 1) / PANEL), width(std::max<int64_t>(1, PIECE_BYTES / panel_bytes)) {}
  int64_t count() const { return (panels + width - 1) / width; }
  int64_t begin(int64_t piece) const { return piece * width; }
  int64_t end(int64_t piece) const { return std::min(panels, (piece + 1) * width); }
};

}  // namespace quire
