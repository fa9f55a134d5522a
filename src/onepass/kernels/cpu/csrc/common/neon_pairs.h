// Sums of NEON's matrix instructions (bfmmla, smmla), which multiply pairs of rows with pairs of tokens: a vector of sums has
// two tokens of the first row, then the same two of the second. In memory they are as everybody's, [rows, 16 tokens].

#pragma once

#if defined(__aarch64__)

#include "common/vectors.h"

namespace onepass {

constexpr int kPairTokens = 16;  // of a line

template <int pairs, int token_pairs>
inline __attribute__((always_inline)) void load_sums(const float* sums, Vector (&total)[pairs][token_pairs]) {
  static_assert(token_pairs % 2 == 0);
#pragma GCC unroll 8
  for (int i = 0; i < pairs; ++i)
#pragma GCC unroll 8
    for (int p = 0; p < token_pairs; p += 2) {
      const float* from = sums + 2 * i * kPairTokens + 2 * p;
      const Vector upper = load(from), lower = load(from + kPairTokens);
      total[i][p] = Vector{upper[0], upper[1], lower[0], lower[1]};
      total[i][p + 1] = Vector{upper[2], upper[3], lower[2], lower[3]};
    }
}

template <int pairs, int token_pairs>
inline __attribute__((always_inline)) void store_sums(const Vector (&total)[pairs][token_pairs], float* sums) {
#pragma GCC unroll 8
  for (int i = 0; i < pairs; ++i)
#pragma GCC unroll 8
    for (int p = 0; p < token_pairs; p += 2) {
      float* to = sums + 2 * i * kPairTokens + 2 * p;
      const Vector a = total[i][p], b = total[i][p + 1];
      store(to, Vector{a[0], a[1], b[0], b[1]});
      store(to + kPairTokens, Vector{a[2], a[3], b[2], b[3]});
    }
}

// call(pair, constant) for groups of three of `pairs`, then for the two or the one that are left.
template <typename Call>
inline void in_threes(int64_t pairs, Call call) {
  int64_t pair = 0;
  for (; pair + 3 <= pairs; pair += 3) call(pair, std::integral_constant<int, 3>());
  if (pairs - pair == 2) call(pair, std::integral_constant<int, 2>());
  if (pairs - pair == 1) call(pair, std::integral_constant<int, 1>());
}

}  // namespace onepass

#endif
