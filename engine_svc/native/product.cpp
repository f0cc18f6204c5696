// The products of all kernels and types: the largest part of compile time.
#include "product.h"

namespace quire {

template <class Type, class Out>
void multiply_panels(const Operands<Type>& call, const Result& result, int64_t first, int64_t last, int64_t begin,
                     int64_t end) {
  auto write = [&](int64_t index, int64_t row, int64_t behind, const typename Type::Total* sums) {
    for (; row < behind; ++row, sums += PANEL) result.write<Out>(sums, row, index * PANEL);
  };
  if constexpr (IN_STRIPS<Type>)
    if (in_strips<Type>(*call.form))
      return sum_panels_of_strips(call, first, last, begin, end,
                                  [&](int64_t index, const float* sums) { write(index, first, last, sums); });
  for (int64_t index = begin; index < end; ++index) {
    if constexpr (Type::TILES && !IS_CODED<Type>) {
      sum_panel(call, first, last, index,
                [&](int64_t row, int64_t behind, const auto* sums) { write(index, row, behind, sums); });
    } else {
      alignas(LINE) typename Type::Total sums[ROWS<Type> * PANEL];
      sum_panel(call, first, last, index, sums);
      write(index, first, last, sums);
    }
  }
}

// Never called: the templates it uses are instantiated here, for inputs of a type, all kinds of weights, and both types of
// outputs. Explicit instantiations would name some of them twice, as types may use the same product at a level.
template <class Value>
void name_products(const Packed& packed) {
  with_groups<Value>(packed, [](auto groups) {
    using Type = typename decltype(groups)::Type;
    [[maybe_unused]] volatile auto to_values = &multiply_panels<Type, Value>;
    [[maybe_unused]] volatile auto to_floats = &multiply_panels<Type, float>;
  });
}

template void name_products<float>(const Packed&);
template void name_products<bf16>(const Packed&);
template void name_products<f16>(const Packed&);

}  // namespace quire
