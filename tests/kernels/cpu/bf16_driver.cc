// Runs bf16_pairs.h alone: numbers on stdin, results on stdout.
//
// In: int64 terms, rows, tokens; float32 x [tokens, terms]; bf16 weights [rows, terms]. Out: 16 bytes of the instructions'
// name; results [rows, tokens] in float32. A number after the last sum is checked to be left as it was.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "products/bf16_pairs.h"

using namespace onepass;
static_assert(kBf16Pairs);

template <typename Number>
std::vector<Number> numbers_from_stdin(int64_t count) {
  std::vector<Number> numbers(count);
  if (count && fread(numbers.data(), sizeof(Number), count, stdin) != static_cast<size_t>(count)) exit(2);
  return numbers;
}

int main() {
  const auto sizes = numbers_from_stdin<int64_t>(3);
  const int64_t terms = sizes[0], rows = sizes[1], tokens = sizes[2];
  const auto x = numbers_from_stdin<float>(tokens * terms);
  const auto weight = numbers_from_stdin<uint16_t>(rows * terms);
  std::vector<uint16_t> panel(panel_numbers(rows, terms) + 1, 0x7fff), narrow(line_numbers(terms) + 1, 0x7fff);
  pair_rows(weight.data(), rows, terms, panel.data());
  std::vector<float> results(rows * tokens), sums((rows + 1) / 2 * 2 * kPairTokens + 1, 7.0f);
  for (int64_t first = 0; first < tokens; first += kPairTokens) {
    std::vector<float> line(terms * kPairTokens);
    for (int64_t token = first; token < std::min(tokens, first + kPairTokens); ++token)
      for (int64_t d = 0; d < terms; ++d) line[d * kPairTokens + token - first] = x[token * terms + d];
    round_line(line.data(), terms, narrow.data());
    multiply_bf16_pairs(narrow.data(), terms, panel.data(), rows, sums.data());
    for (int64_t token = first; token < std::min(tokens, first + kPairTokens); ++token)
      for (int64_t row = 0; row < rows; ++row) results[row * tokens + token] = sums[row * kPairTokens + token - first];
  }
  if (panel.back() != 0x7fff || narrow.back() != 0x7fff || sums.back() != 7.0f) return 3;
  char name[16] = {};
  strncpy(name, kBf16Name, 15);
  fwrite(name, 1, 16, stdout);
  fwrite(results.data(), 4, results.size(), stdout);
}
