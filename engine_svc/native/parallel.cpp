// See parallel.h.
#include "parallel.h"

namespace quire {

static int chosen = 1;

void set_threads(int count) { chosen = count; }
int threads() { return chosen; }

}  // namespace quire

extern "C" void quire_set_threads(int count) { quire::set_threads(count); }
