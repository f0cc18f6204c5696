// Kernels whose calls can be noted and made again: the arguments lie behind each other, each in a word of 64 bits, as
// they come from the caller (its lowest bytes first, as all processors of our levels have them).
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

// quire_call_NAME calls quire_NAME with the arguments at `words`, and returns where the next words are.
#define RECORDABLE(name) \
  extern "C" const int64_t* quire_call_##name(const int64_t* words) { return quire::call(quire_##name, words); }
