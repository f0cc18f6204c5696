// Kernels whose calls can be recorded and replayed. Arguments are stored one after the other, each in a word of 64 bits as
// passed by the caller (lowest bytes first: all processors of our levels are little-endian).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace quire {

template <class Argument>
Argument from_word(int64_t word) {
  Argument argument;
  std::memcpy(&argument, &word, sizeof argument);
  return argument;
}

template <class... Arguments, size_t... INDEX>
const int64_t* call(void (*kernel)(Arguments...), const int64_t* words, std::index_sequence<INDEX...>) {
  kernel(from_word<Arguments>(words[INDEX])...);
  return words + sizeof...(Arguments);
}

template <class... Arguments>
const int64_t* call(void (*kernel)(Arguments...), const int64_t* words) {
  return call(kernel, words, std::index_sequence_for<Arguments...>{});
}

}  // namespace quire

// quire_call_NAME calls quire_NAME with the arguments at `words`, and returns the address of the next words.
#define RECORDABLE(name) \
  extern "C" const int64_t* quire_call_##name(const int64_t* words) { return quire::call(quire_##name, words); }
