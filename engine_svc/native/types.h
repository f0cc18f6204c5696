// The element types of tensors, as numbered by the caller.
#pragma once

#include "vector.h"

namespace quire {

// Calls `call` with a value of type number `type`: 0 float, 1 bf16, 2 f16.
template <class Call>
void with_type(int type, const Call& call) {
  switch (type) {
    case 0: return call(float{});
    case 1: return call(bf16{});
    case 2: return call(f16{});
  }
}

}  // namespace quire
