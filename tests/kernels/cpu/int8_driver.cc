// Runs int8_products.h alone, for any instruction set that a compiler can be asked for: numbers on stdin, results on stdout.
//
// In: int64 terms, rows, tokens, block, has_offset, planes; float32 x [tokens, terms]; int8 weights [rows, terms]; float32 scale
// and, if there is one, offset [rows, terms / block]. Out: 16 bytes of the instructions' name; int32 activations as they
// were quantised [tokens, terms]; their scale [tokens, terms / 32]; results [rows, tokens], both in float32.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "products/int8_products.h"

using namespace onepass;

template <typename Number>
std::vector<Number> numbers_from_stdin(int64_t count) {
  std::vector<Number> numbers(count);
  if (count && fread(numbers.data(), sizeof(Number), count, stdin) != static_cast<size_t>(count)) exit(2);
  return numbers;
}

template <typename Number>
void to_stdout(const std::vector<Number>& numbers) {
  fwrite(numbers.data(), sizeof(Number), numbers.size(), stdout);
}

template <int planes>
void run(const std::vector<int64_t>& sizes) {
  const int64_t terms = sizes[0], rows = sizes[1], tokens = sizes[2], block = sizes[3], lines = (tokens + 15) / 16;
  const auto x = numbers_from_stdin<float>(tokens * terms);
  const auto weights = numbers_from_stdin<int8_t>(rows * terms);
  const auto scale = numbers_from_stdin<float>(rows * terms / block), offset = numbers_from_stdin<float>(sizes[4] * rows * terms / block);
  std::vector<int32_t> start(rows * terms / block);
  std::vector<char> memory(QuantizedLines::bytes(lines, terms, planes));
  const QuantizedLines narrow(memory.data(), lines, terms, planes);
  for (int64_t line = 0; line < lines; ++line) {
    std::vector<float> side_by_side(terms * kTokens);
    for (int64_t token = line * 16; token < std::min(tokens, line * 16 + 16); ++token)
      for (int64_t d = 0; d < terms; ++d) side_by_side[d * kTokens + token % 16] = x[token * terms + d];
    quantize_line<planes>(side_by_side.data(), narrow.from(line));
  }
  block_starts<planes>(weights.data(), rows * terms / block, block, start.data());
  const Int8Rows own{weights.data(), scale.data(), offset.empty() ? nullptr : offset.data(), start.data()};
  std::vector<char> order(ordered_bytes(rows, terms, block) + 1, 7);
  const Int8Rows all = ordered_rows(own, rows, terms, block, order.data());

  std::vector<float> results(rows * tokens), scales(tokens * (terms / kScaleTerms));
  std::vector<float> sums((rows + 1) / 2 * 2 * kInt8Lines * kTokens + 1, 7.0f);
  std::vector<int32_t> quantized(tokens * terms);
  for (int64_t line = 0; line < lines; line += kInt8Lines) {
    const int64_t together = std::min<int64_t>(kInt8Lines, lines - line);
    multiply_int8_lines<planes>(together, narrow.from(line), all, block, rows, sums.data());
    for (int64_t token = line * 16; token < std::min(tokens, (line + together) * 16); ++token)
      for (int64_t row = 0; row < rows; ++row)
        results[row * tokens + token] = sums[row * together * kTokens + token - line * 16];
  }
  for (int64_t token = 0; token < tokens; ++token) {
    const QuantizedLines its = narrow.from(token / 16);
    for (int64_t d = 0; d < terms; ++d) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(its.numbers + word_of(d, token % 16));
      quantized[token * terms + d] = kZero ? bytes[d % 4] - kZero : static_cast<int8_t>(bytes[d % 4]);
      if (planes == 2) {
        const auto* low = reinterpret_cast<const int8_t*>(its.low + word_of(d, token % 16));
        quantized[token * terms + d] = (1 << kLowBits) * quantized[token * terms + d] + low[d % 4];
      }
    }
    for (int64_t n = 0; n < terms / kScaleTerms; ++n)
      scales[token * (terms / kScaleTerms) + n] = its.scale[n * kScaleFloats + token % 16];
  }
  if (order.back() != 7 || sums.back() != 7.0f) exit(4);  // written past their ends
  char name[16] = {};
  strncpy(name, kDotName, 15);
  fwrite(name, 1, 16, stdout);
  to_stdout(quantized);
  to_stdout(scales);
  to_stdout(results);
}

int main() {
  const auto sizes = numbers_from_stdin<int64_t>(6);
  if (sizes[5] > kMaxPlanes) return 3;
  sizes[5] == 2 ? run<kMaxPlanes>(sizes) : run<1>(sizes);
}
