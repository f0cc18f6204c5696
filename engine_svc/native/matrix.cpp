// Products with packed weights: see matrix.h.
#ifdef __AVX512BF16__
#include "matrix.h"

namespace {

using namespace quire_dot;

template <class Value>
void pack(const Value* weight, int64_t outputs, int64_t size, Value* packed, int group) {
  int64_t steps = size / group, panels = (outputs + PANEL - 1) / PANEL;
#pragma omp parallel for schedule(static)
  for (int64_t index = 0; index < panels; ++index)
    for (int64_t n = 0; n < PANEL; ++n) {
      int64_t output = index * PANEL + n;
      Value* to = packed + index * steps * PANEL * group + n * group;
      for (int64_t k = 0; k < steps; ++k, to += PANEL * group)
        for (int g = 0; g < group; ++g) to[g] = output < outputs ? weight[output * size + k * group + g] : Value(0);
    }
}

}  // namespace

extern "C" {

// weight [outputs, size] to packed [panels, size / group, 64, group].
void quire_pack_bf16(const bf16* weight, int64_t outputs, int64_t size, bf16* packed) {
  pack(weight, outputs, size, packed, Bf16::GROUP);
}

void quire_pack_int8(const int8_t* weight, int64_t outputs, int64_t size, int8_t* packed) {
  pack(weight, outputs, size, packed, Int8::GROUP);
}

// input bfloat16 [rows, steps * 2], its rows `stride` values apart; output [rows, outputs], bfloat16 or float32.
void quire_matrix_bf16(const bf16* input, int64_t rows, int64_t stride, const bf16* weight, const float* bias,
                       void* output, int64_t outputs, int64_t steps, int wide, int threads) {
  Call<bf16> call{(const uint32_t*)input, rows, stride / 2, (const uint32_t*)weight, bias, nullptr, nullptr, nullptr,
                  (bf16*)output, outputs, steps};
  Call<float> wide_call{call.input, rows, stride / 2, call.weight, bias, nullptr, nullptr, nullptr,
                        (float*)output, outputs, steps};
#pragma omp parallel num_threads(threads)
  wide ? run<Bf16>(wide_call) : run<Bf16>(call);
}

// The same with int8 weights; the input is quantized row by row. `scratch` holds rows * steps * 4 bytes and rows floats.
void quire_matrix_int8(const bf16* input, int64_t rows, int64_t stride, const int8_t* weight,
                       const float* weight_scale, const int32_t* correction, const float* bias, void* output,
                       int64_t outputs, int64_t steps, uint8_t* scratch, float* input_scale, int wide, int threads) {
  Call<bf16> call{(const uint32_t*)scratch, rows, steps, (const uint32_t*)weight, bias, input_scale, weight_scale,
                  correction, (bf16*)output, outputs, steps};
  Call<float> wide_call{call.input, rows, steps, call.weight, bias, input_scale, weight_scale,
                        correction, (float*)output, outputs, steps};
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row)
      input_scale[row] = quantize_row(input + row * stride, steps * 4, scratch + row * steps * 4);
    wide ? run<Int8>(wide_call) : run<Int8>(call);
  }
}
}
#endif
