// What follows the product before attention: biases, norms and rotation of heads, and where q, k and v lie.
//
// Numbers that are rotated with one another lie half a head apart. A pair of weight tiles has 16 results of a head's first
// half beside those 16, so that a head without a norm is rotated as its sums leave the tiles. One with a norm is finished
// when all of it is there.

#pragma once

#include <algorithm>
#include <cmath>

#include "amx/planes.h"
#include "amx/tiles.h"
#include "common/threads.h"

namespace onepass {

inline __m512 sixteen(const float* from) { return _mm512_loadu_ps(from); }
inline __m512 sixteen(const bf16* from) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }
inline void put_sixteen(float* to, __m512 numbers) { _mm512_storeu_ps(to, numbers); }
inline void put_sixteen(bf16* to, __m512 numbers) { put<1>(numbers, to, 0); }

// Of a product's results, [kv_heads, group + 2, size].
template <typename Number>
struct Heads {
  int64_t kv_heads, group, size;
  Number* to[3];         // q [tokens, kv_heads, group, size]; k and v [tokens, kv_heads, size]
  const float* bias;     // of all results, or none
  const float* norms[2]; // of q and of k, or none
  const float *cos, *sin;  // [tokens, size / 2]
  float eps;

  int64_t token_numbers(int which) const { return (which ? kv_heads : kv_heads * group) * size; }

  // The first of the 16 rows of a pair's half.
  auto order() const {
    return [size = size](int64_t pair, int half) {
      const int64_t pairs = size / kSide;
      return pair / pairs * size + half * (size / 2) + pair % pairs * kRows;
    };
  }

  void finish(const float* sums, int64_t token, int64_t pair, int64_t first, int64_t end) const {
    const int64_t pairs = size / kSide, head = pair / pairs, at = pair % pairs * kRows, member = head % (group + 2);
    const int which = part_of(member);
    const float* added = bias ? bias + head * size + at : nullptr;
    const bool rotates = which < 2 && !norms[which];
    for (int64_t row = first; row < end; ++row) {
      Pair x = load(sums + row * kSide);
      if (added) x = x + Pair{_mm512_loadu_ps(added), _mm512_loadu_ps(added + size / 2)};
      if (rotates) x = turned(x, token + row, at);
      Number* out = first_of(token + row, head) + at;
      put_sixteen(out, x.low);
      put_sixteen(out + size / 2, x.high);
    }
  }

  // Asks for the lines of a row's results, once for a head.
  void fetch(int64_t token, int64_t pair) const {
    const int64_t pairs = size / kSide;
    if (pair % pairs) return;
    const char* out = reinterpret_cast<const char*>(first_of(token, pair / pairs));
    for (int64_t at = 0; at < size * static_cast<int64_t>(sizeof(Number)); at += 64) fetch_to_write(out + at);
  }

  // Heads with a norm, when they are all there.
  void finish_normed(xla::ffi::ThreadPool& pool, int64_t tokens) const {
    for (int which = 0; which < 2; ++which)
      if (norms[which])
        in_parallel(pool, (tokens + kSide - 1) / kSide, [&](int64_t block) {
          const int64_t numbers = token_numbers(which);
          for (int64_t token = block * kSide; token < std::min(tokens, (block + 1) * kSide); ++token)
            for (int64_t at = 0; at < numbers; at += size) norm(to[which] + token * numbers + at, norms[which], token);
        });
  }

 private:
  int part_of(int64_t member) const { return member < group ? 0 : member == group ? 1 : 2; }
  // A token's first number of a head, counting k and v.
  Number* first_of(int64_t token, int64_t head) const {
    const int64_t member = head % (group + 2), kv_head = head / (group + 2);
    const int which = part_of(member);
    return to[which] + token * token_numbers(which) + (which ? kv_head : kv_head * group + member) * size;
  }
  Pair turned(Pair x, int64_t token, int64_t at) const {
    const __m512 c = _mm512_loadu_ps(cos + token * (size / 2) + at), s = _mm512_loadu_ps(sin + token * (size / 2) + at);
    return {_mm512_fmsub_ps(x.low, c, _mm512_mul_ps(x.high, s)), _mm512_fmadd_ps(x.high, c, _mm512_mul_ps(x.low, s))};
  }
  void norm(Number* head, const float* weight, int64_t token) const {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += kRows) squares = _mm512_fmadd_ps(sixteen(head + i), sixteen(head + i), squares);
    const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(size);
    const __m512 by = _mm512_set1_ps(1.0f / std::sqrt(mean + eps));
    auto normed = [&](int64_t i) {
      return _mm512_mul_ps(_mm512_mul_ps(sixteen(head + i), by), _mm512_loadu_ps(weight + i));
    };
    for (int64_t i = 0; i < size / 2; i += kRows) {
      const Pair x = turned({normed(i), normed(size / 2 + i)}, token, i);
      put_sixteen(head + i, x.low);
      put_sixteen(head + size / 2 + i, x.high);
    }
  }
};

}  // namespace onepass
