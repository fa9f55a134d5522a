// Products of weights in 8 bits and rotated activations in 8 bits: what `cpu_products.h` calls for weights whose scales are
// of more than 32 terms, and nothing of XLA's.
//
// A scale for every 32 terms costs an inner loop a quarter of its time (int8_products.h). One for three times as many costs
// a tenth, if an outlier may not harm so many: sixteen terms that lie side by side are rotated (models/rotation.py), as the
// weights were when they were loaded, and an outlier is a sixteenth of each of them.
//
//     result[row, token] = Σ_blocks  scale[row, block] · x_scale[block, token] · Σ_terms  w[row, term] · x[term, token]
//
// Four lines of sixteen tokens lie together, [terms / 4, 4 lines, 16 tokens, 4 terms], so that they are read in the order in
// which they lie. Sums are [row][line][16], as in int8_products.h; a token's are the same whoever its neighbours are. With
// AVX-512's VNNI six rows and four lines are multiplied by rotated_vnni.h.

#pragma once

#include <algorithm>
#include <cstdint>

#include "common/vectors.h"
#include "products/int8_products.h"
#include "products/rotated_vnni.h"

namespace onepass {

constexpr int64_t kLineGroup = 4;      // lines that lie together
constexpr int kRotated = 16;           // terms that are rotated with one another
constexpr int64_t kMaxRotated = 96;    // terms of a scale: of more, groups are larger (models/rotation.py)

// Activations of some lines, in groups of four.
struct RotatedLines {
  int64_t terms, block, blocks;  // block: terms of a scale, a multiple of 32; blocks: of a line
  int32_t* numbers;      // [groups, terms / 4, 4, 16]: four bytes each
  float* scale;          // [groups, terms / block, 4, 2, 16]: a scale and, with kFloatSums, its origin

  static int64_t bytes(int64_t lines, int64_t terms, int64_t block) {
    return (lines + kLineGroup - 1) / kLineGroup * kLineGroup * kTokens * (terms + terms / block * 8);
  }
  RotatedLines(char* memory, int64_t lines, int64_t terms, int64_t block)
      : terms(terms), block(block), blocks(terms / block), numbers(reinterpret_cast<int32_t*>(memory)),
        scale(reinterpret_cast<float*>(memory + (lines + kLineGroup - 1) / kLineGroup * kLineGroup * kTokens * terms)) {}
  int32_t* words(int64_t line, int64_t term) const {
    return numbers + ((line / kLineGroup * (terms / 4) + term / 4) * kLineGroup + line % kLineGroup) * kTokens;
  }
  float* scales(int64_t line, int64_t at) const {
    return scale + ((line / kLineGroup * blocks + at) * kLineGroup + line % kLineGroup) * 2 * kTokens;
  }
};

// Sums and differences of sixteen vectors: Hadamard's matrix. Done twice, sixteen times what was given.
inline void rotate(Vector (&x)[kRotated]) {
#pragma GCC unroll 4
  for (int apart = 1; apart < kRotated; apart *= 2)
#pragma GCC unroll 16
    for (int i = 0; i < kRotated; ++i)
      if (!(i & apart)) {
        const Vector sum = x[i] + x[i + apart];
        x[i + apart] = x[i] - x[i + apart];
        x[i] = sum;
      }
}

// Rotates and quantises one block of the 16 tokens of a line; number(term, lane) is a vector of some of them. A block with a
// number that is not finite gets a scale that is not.
template <typename Number>
inline void quantize_rotated(const RotatedLines& to, int64_t line, int64_t at, Number number) {
  const float shift = 12582912.0f;  // 1.5 · 2^23: what is added to it is rounded to whole numbers
  alignas(64) float rotated[kMaxRotated * kWidth];
  const int64_t first = at * to.block;
  for (int lane = 0; lane < kTokens; lane += kWidth) {
    Vector top = {}, total = {};
    for (int64_t d = 0; d < to.block; d += kRotated) {
      Vector x[kRotated];
#pragma GCC unroll 16
      for (int i = 0; i < kRotated; ++i) x[i] = number(first + d + i, lane);
      rotate(x);
      total += x[0];  // the sum of all sixteen
#pragma GCC unroll 16
      for (int i = 0; i < kRotated; ++i) {
        top = larger(top, magnitude(x[i]));
        store(rotated + (d + i) * kWidth, x[i]);
      }
    }
    const Vector by = top > splat(1e-30f) ? kPairedLevels / top : Vector{};
    Vector scale = top > splat(1e-30f) ? top / kPairedLevels : Vector{};
    scale += total - total;
    float* scales = to.scales(line, at) + lane;
    if constexpr (kFloatSums) {
      scale = reinterpret_cast<Vector>(reinterpret_cast<Ints>(scale) & ~3);  // 22 bits: its origin is exact
      store(scales + kTokens, scale * -kSumOrigin);
    }
    store(scales, scale);
    int32_t* words = to.words(line, first) + lane;
    for (int64_t d = 0; d < to.block; d += 4, words += kLineGroup * kTokens) {
      Ints numbers[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        numbers[i] = reinterpret_cast<Ints>(load(rotated + (d + i) * kWidth) * by + shift) + splat(kPairedZero);
      store(words, lowest_bytes(numbers));
    }
  }
}

// Rows of weights, a panel, as they are multiplied: the numbers where they lie, the rest in the order in which it is read.
struct RotatedRows {
  const int8_t* numbers;  // [rows, terms]
  int64_t rows;
  float* scale;    // [blocks, rows]
  int32_t* start;  // the same: where sums begin (block_starts)

  static int64_t bytes(int64_t rows, int64_t blocks) { return 8 * rows * blocks; }
  // `scales` are [rows, blocks].
  RotatedRows(const int8_t* numbers, const float* scales, int64_t rows, int64_t terms, int64_t block, char* memory)
      : numbers(numbers), rows(rows), scale(reinterpret_cast<float*>(memory)),
        start(reinterpret_cast<int32_t*>(memory) + rows * (terms / block)) {
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t at = 0; at < terms / block; ++at) {
        scale[at * rows + row] = scales[row * (terms / block) + at];
        int32_t begin = kSumBits<1>;
        if constexpr (kPairedZero != 0)
          for (int64_t d = 0; d < block; d += 32) begin -= kPairedZero * sum_of<32>(numbers + row * terms + at * block + d);
        start[at * rows + row] = begin;
      }
  }
};

// Adds to sums[row][line][16] of so many rows and lines what a block gives, or begins them with the first.
template <int lines, int rows>
__attribute__((noinline)) void add_rotated_block(const RotatedLines& x, int64_t line, int64_t at, const RotatedRows& weight,
                                                 int64_t row, float* sums) {
  constexpr int vectors = lines * kTokenVectors;
  const int32_t* numbers = x.words(line, at * x.block);
  const int8_t* from = weight.numbers + row * x.terms + at * x.block;
  auto place = [](int v) { return v / kTokenVectors * kTokens + v % kTokenVectors * kWidth; };
  Ints sum[rows][vectors];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sum[i][v] = splat(weight.start[at * weight.rows + row + i]);
  for (int64_t d = 0; d < x.block; d += 4, numbers += kLineGroup * kTokens) {
    Ints token[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) token[v] = load(numbers + place(v));
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const Ints four_weights = four(from + i * x.terms + d);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sum[i][v] = dot(sum[i][v], token[v], four_weights);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) {
    const float* scales = x.scales(line + v / kTokenVectors, at) + v % kTokenVectors * kWidth;
    const Vector scale = load(scales), origin = kFloatSums ? load(scales + kTokens) : Vector{};
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const Vector by = splat(weight.scale[at * weight.rows + row + i]);
      float* to = sums + (i * vectors + v) * kWidth;
      const Vector part = kFloatSums ? fused(reinterpret_cast<Vector>(sum[i][v]), scale, origin)
                                     : __builtin_convertvector(sum[i][v], Vector) * scale;
      store(to, at ? fused(part, by, load(to)) : part * by);
    }
  }
}

#if defined(__AVX512F__)
// A block of a group of lines by rotated_vnni.h. Where the last group of rows is not whole, the rows before it are
// multiplied again, with sums in `beside`, of which the last ones are copied when they are complete.
template <bool first>
void add_vnni_rows(const RotatedLines& x, int64_t line, int64_t at, const RotatedRows& weight, float* beside, float* sums) {
  if constexpr (kVnniRowGroups) {
    constexpr int64_t floats = kLineGroup * kTokens;
    for (int64_t row = 0; row < weight.rows; row += kVnniRowGroup) {
      const bool whole = row + kVnniRowGroup <= weight.rows;
      const int64_t from = whole ? row : weight.rows - kVnniRowGroup, of_block = at * weight.rows + from;
      float* to = whole ? sums + row * floats : beside;
      add_vnni_block<first>(x.words(line, at * x.block), weight.numbers + from * x.terms + at * x.block, x.terms, x.block / 32,
                            weight.start + of_block, x.scales(line, at), weight.scale + of_block, to);
      if (!whole && at + 1 == x.blocks)
        std::copy(beside + (row - from) * floats, beside + kVnniRowGroup * floats, sums + row * floats);
    }
  }
}
#endif

// sums[row][line][16] of a panel's rows for so many lines from `line` on, all of one group.
template <int lines>
void multiply_rotated_group(const RotatedLines& x, int64_t line, const RotatedRows& weight, float* sums) {
#if defined(__AVX512F__)
  if constexpr (kVnniRowGroups && lines == kLineGroup) {
    if (weight.rows >= kVnniRowGroup) {
      alignas(64) float beside[kVnniRowGroup * kLineGroup * kTokens];
      add_vnni_rows<true>(x, line, 0, weight, beside, sums);
      for (int64_t at = 1; at < x.blocks; ++at) add_vnni_rows<false>(x, line, at, weight, beside, sums);
      return;
    }
  }
#endif
  for (int64_t at = 0; at < x.blocks; ++at)
    in_groups<kRegisterRows<lines * kTokenVectors>>(weight.rows, [&]<int count>(int64_t row, std::integral_constant<int, count>) {
      add_rotated_block<lines, count>(x, line, at, weight, row, sums + row * lines * kTokens);
    });
}

inline void multiply_rotated_lines(int64_t lines, const RotatedLines& x, int64_t line, const RotatedRows& weight, float* sums) {
  if (lines == 1) return multiply_rotated_group<1>(x, line, weight, sums);
  if constexpr (kInt8Lines > 1) {
    if (lines == 2) return multiply_rotated_group<2>(x, line, weight, sums);
    if (lines == 3) return multiply_rotated_group<3>(x, line, weight, sums);
    return multiply_rotated_group<4>(x, line, weight, sums);
  }
}

}  // namespace onepass
