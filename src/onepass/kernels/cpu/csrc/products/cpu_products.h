// A layer's products, x · weightᵀ with float32 sums, for any CPU: the norm before them and the work after them included.
//
// Sixteen tokens lie side by side, a line: activations are [lines, terms, 16] in float32, from layer to layer. A vector's
// lanes are tokens, and weights are broadcast from where they lie, as they are (bf16 is widened, a panel at a time): no
// weight is brought into another order, no sum runs across a vector, and a token's sum is the same whoever its neighbours
// are:
//
//     sums[row, token] = Σ_d  weight[row][d] · x[d, token]        6 rows x 4 lines in registers with AVX-512
//
// A task is a panel of weight rows with a range of tokens. Its terms come in chunks whose x stays in the first cache for
// all rows of the panel, and a panel's weights stay in the second cache for all blocks of lines. Memory traffic: weights
// once a range, x once a panel: panels are as large as that cache lets them be.
//
// Weights of 8 bits have a scale for every 16 or 32 terms of a row, [layers, results, terms / 32], and maybe an offset,
// and are widened a panel at a time as those of 16 are: what is multiplied is float32.
//
// Weights in GGUF's blocks are bytes, with a place (in twos) and a block type for every row, [layers, results] each; they
// are widened alike, to the bits that a widened file would have (gguf_dequantize.cc).
//
// With ONEPASS_INTEGER_PRODUCTS defined before this file, weights of 8 bits and GGUF's blocks are not widened: activations
// are quantised, once a call, and integers are multiplied (int8_products.h). Not so in `qkv`: attention's scores suffer
// most from quantised activations (docs/log.md), and its rows are the fewest. With VNNI and NEON's dot products its activations
// have 11 bits, elsewhere they stay in float32. GGUF rows that are not quantised, and rows that are no multiple of 32 long,
// are multiplied in float32 as ever.
//
// Weights of 16 bits are not widened where the target has NEON's bfmmla: x is rounded to bf16, once a call, and numbers of 16
// bits are multiplied (bf16_pairs.h).
//
// Weights are all layers' stacked, [layers, results, terms]; `at` says which layer. `count` tokens are real, the first
// ones; lines after the last of them are not computed.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/caches.h"
#include "common/neon_lanes.h"
#include "common/numbers.h"
#include "common/threads.h"
#include "common/vectors.h"
#include "products/bf16_pairs.h"
#include "products/int8_products.h"
#include "products/rotated_products.h"

extern "C" bool onepass_gguf_dequantize(int32_t type, const uint8_t* blocks, int64_t count, float* out);
extern "C" int64_t onepass_gguf_block_numbers(int32_t type);
extern "C" int64_t onepass_gguf_scale_numbers(int32_t type);
extern "C" bool onepass_gguf_split(int32_t type, const uint8_t* blocks, int64_t count, int8_t* numbers, float* scale,
                                   float* offset);

namespace onepass {
namespace {

namespace ffi = xla::ffi;
using Wide = ffi::Buffer<ffi::F32>;
using Index = ffi::Buffer<ffi::S32>;

// What comes with weights: scales and offsets of those in 8 bits, places and block types of rows in GGUF's blocks.
template <typename Weight>
constexpr bool kGguf = std::is_same_v<Weight, GgufByte>;
template <typename Weight>
using Scales = ffi::Buffer<kGguf<Weight> ? ffi::U32 : ffi::F32>;
template <typename Weight>
using Offsets = ffi::Buffer<kGguf<Weight> ? ffi::U8 : ffi::F32>;

// Planes of 8 bits of quantised activations; 0: they stay in float32.
#if defined(ONEPASS_INTEGER_PRODUCTS)
constexpr int kIntegerPlanes = 1, kQkvPlanes = kMaxPlanes == 2 ? 2 : 0;
#else
constexpr int kIntegerPlanes = 0, kQkvPlanes = 0;
#endif

constexpr int kLine = kTokens;  // LINE of line_ops.py
constexpr int kLineVectors = kLine / kWidth, kMaxLines = kMaxVectors / kLineVectors;
#if defined(__aarch64__)
constexpr int64_t kChunkFloats = 8192;  // of x at a time: half of a first cache of 64 KiB
#else
constexpr int64_t kChunkFloats = 4096;  // of x at a time: half of a first cache of 32 KiB
#endif
constexpr int64_t kLeastRows = 24;  // of a panel, of each half of a gated weight
#if defined(__aarch64__)
constexpr int64_t kMostRows = 24;  // of a panel, of both halves; more were not measured there
#else
constexpr int64_t kMostRows = 72;
#endif
constexpr int64_t kPanelStep = 12;  // a multiple of all numbers of rows whose sums fit in registers with four vectors
constexpr int64_t kTasks = 12;  // of a thread, or more: so much may one of them have to wait for the others

template <typename Weight>
struct Product {
  int64_t tokens, terms, results;
  const Weight* weight;  // the layer's
  int64_t layer;
  // Of weights in 8 bits, the layer's: a scale, and maybe an offset, of every `block` terms.
  int64_t block = 1;
  const float *scale = nullptr, *offset = nullptr;
  // Of rows in GGUF's blocks, the layer's; `weight` is where all layers' bytes begin.
  const uint32_t* places = nullptr;
  const uint8_t* kinds = nullptr;
  int64_t lines() const { return (tokens + kLine - 1) / kLine; }
};

// Whether scales are of so many terms that weights are stored rotated (rotated_products.h).
template <typename Weight>
bool is_rotated(const Product<Weight>& product) {
  return std::is_same_v<Weight, int8_t> && product.block > kScaleTerms;
}

ffi::ErrorOr<Product<GgufByte>> gguf_product_of(int64_t tokens, const Index& count, const Numbers<GgufByte>& weight,
                                                const Scales<GgufByte>& places, const Offsets<GgufByte>& kinds,
                                                int64_t terms, const Index& at) {
  const int64_t layers = places.dimensions()[0], results = places.dimensions()[1], layer = at.typed_data()[0];
  if (layer < 0 || layer >= layers) return ffi::Error::InvalidArgument("there is no such layer");
  if (kinds.element_count() != places.element_count())
    return ffi::Error::InvalidArgument("every row in GGUF's blocks needs a place and a type");
  tokens = std::clamp<int64_t>(count.typed_data()[0], 0, tokens);
  Product<GgufByte> product{tokens, terms, results, numbers<GgufByte>(weight), layer};
  product.places = places.typed_data() + layer * results;
  product.kinds = kinds.typed_data() + layer * results;
  return product;
}

template <typename Weight>
ffi::ErrorOr<Product<Weight>> product_of(int64_t tokens, const Index& count, const Numbers<Weight>& weight,
                                         const Scales<Weight>& scale, const Offsets<Weight>& offset, int64_t terms,
                                         const Index& at) {
  if constexpr (kGguf<Weight>) return gguf_product_of(tokens, count, weight, scale, offset, terms, at);
  else {
  const int64_t layers = weight.dimensions().front(), layer = at.typed_data()[0];
  const int64_t results = weight.element_count() / layers / terms;
  if (static_cast<int64_t>(weight.element_count()) != layers * results * terms)
    return ffi::Error::InvalidArgument("a weight's rows are not as long as a token");
  if (layer < 0 || layer >= layers) return ffi::Error::InvalidArgument("there is no such layer");
  tokens = std::clamp<int64_t>(count.typed_data()[0], 0, tokens);
  Product<Weight> product{tokens, terms, results, numbers<Weight>(weight) + layer * results * terms, layer};
  if constexpr (std::is_same_v<Weight, int8_t>) {
    const int64_t scales = scale.element_count() / layers, offsets = offset.element_count() / layers;
    product.block = scales ? results * terms / scales : 0;
    if (is_rotated(product)) {
      if (!kIntegerPlanes || product.block > kMaxRotated || terms % product.block || product.block % 32 || offsets)
        return ffi::Error::InvalidArgument("rotated weights need integer products, a scale of up to 96 terms and no offset");
    } else if ((product.block != 16 && product.block != 32) || terms % product.block || (offsets && offsets != scales)) {
      return ffi::Error::InvalidArgument("weights of 8 bits have a scale, and maybe an offset, of every 16 or 32 terms");
    }
    product.scale = scale.typed_data() + layer * scales;
    if (offsets) product.offset = offset.typed_data() + layer * scales;
  }
  return product;
  }
}

template <int terms>
void widen_blocks(const int8_t* from, const float* scale, const float* offset, int64_t blocks, float* to) {
  for (int64_t block = 0; block < blocks; ++block, from += terms, to += terms) {
    const float by = scale[block], plus = offset ? offset[block] : 0.0f;
    for (int i = 0; i < terms; ++i) to[i] = static_cast<float>(from[i]) * by + plus;
  }
}

// Rows of a product's weight, from `row` on, in float32.
template <typename Weight>
void widen_rows(const Product<Weight>& product, int64_t row, int64_t rows, float* to) {
  if constexpr (kGguf<Weight>) {
    for (int64_t i = row; i < row + rows; ++i, to += product.terms) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(product.weight) + 2 * static_cast<int64_t>(product.places[i]);
      onepass_gguf_dequantize(product.kinds[i], bytes, product.terms / onepass_gguf_block_numbers(product.kinds[i]), to);
    }
    return;
  }
  const Weight* from = product.weight + row * product.terms;
  if constexpr (std::is_same_v<Weight, int8_t>) {
    const int64_t first = row * (product.terms / product.block), blocks = rows * (product.terms / product.block);
    const float* offset = product.offset ? product.offset + first : nullptr;
    if (product.block == 16) widen_blocks<16>(from, product.scale + first, offset, blocks, to);
    else widen_blocks<32>(from, product.scale + first, offset, blocks, to);
  } else if constexpr (!kGguf<Weight>) {
    for (int64_t i = 0; i < rows * product.terms; ++i) to[i] = widen(from[i]);
  }
}

// Rows of a panel, of each half: as many as half of the second cache holds, and no more than make `tasks` panels of so
// many blocks of lines.
inline int64_t panel_rows(int64_t results, int64_t terms, int64_t halves, int64_t blocks, int64_t tasks) {
  const int64_t fitting = second_cache_bytes() / 2 / (terms * 4), busy = results * std::max<int64_t>(1, blocks) / tasks;
  const int64_t rows = std::min(fitting, busy) / halves / kPanelStep * kPanelStep;
  return std::clamp(rows, kLeastRows, std::max(kLeastRows, kMostRows / halves));
}

// Adds to sums[row][line][16] of so many rows and lines, or begins them. `fresh` weights are in no cache yet: those of the
// rows after these are asked for, a few at a time.
template <int lines, int rows, bool fresh>
__attribute__((noinline)) void add_terms(const float* x, int64_t line_stride, const float* weight, int64_t row_stride,
                                         int64_t terms, bool begin, float* sums) {
  constexpr int vectors = lines * kLineVectors;
  Vector total[rows][vectors] = {};
  const float* row[rows];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
    row[i] = weight + i * row_stride;
    if (begin) continue;
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) total[i][v] = load(sums + (i * vectors + v) * kWidth);
  }
#if defined(__aarch64__)
  static_assert(lines == 1);  // x is one line: [terms, 16]
  add_rows(total, x, row, terms);
#else
  const int64_t steps = fresh ? 16 : terms;
  for (int64_t start = 0; start < terms; start += steps) {
    if constexpr (fresh)
      for (int i = 0; i < rows; ++i) __builtin_prefetch(row[i] + rows * row_stride + start, 0, 2);
    const int64_t end = std::min(terms, start + steps);
    for (int64_t d = start; d < end; ++d) {
      Vector token[vectors];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v)
        token[v] = load(x + v / kLineVectors * line_stride + d * kLine + v % kLineVectors * kWidth);
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        const Vector number = splat(row[i][d]);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) total[i][v] += number * token[v];
      }
    }
  }
#endif
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) store(sums + (i * vectors + v) * kWidth, total[i][v]);
}

// sums[row][line][16] of a panel's rows for a block of lines; `fresh`: its first.
template <int lines, bool fresh>
void multiply_block(const float* x, int64_t terms, const float* weight, int64_t rows, float* sums) {
  constexpr int64_t chunk = kChunkFloats / (lines * kLine);
  for (int64_t start = 0; start < terms; start += chunk)
    in_groups<kRegisterRows<lines * kLineVectors>>(rows, [&]<int count>(int64_t row, std::integral_constant<int, count>) {
      add_terms<lines, count, fresh>(x + start * kLine, terms * kLine, weight + row * terms + start, terms,
                              std::min(chunk, terms - start), start == 0, sums + row * lines * kLine);
    });
}

template <bool fresh>
void multiply_lines(int64_t lines, const float* x, int64_t terms, const float* weight, int64_t rows, float* sums) {
  if (lines == 1) return multiply_block<1, fresh>(x, terms, weight, rows, sums);
  if constexpr (kMaxLines > 1) {
    if (lines == 2) return multiply_block<2, fresh>(x, terms, weight, rows, sums);
    if (lines == 3) return multiply_block<3, fresh>(x, terms, weight, rows, sums);
    return multiply_block<4, fresh>(x, terms, weight, rows, sums);
  }
}

// body(line) for every line with a real token, on several threads where there are many.
template <typename Body>
void for_lines(ffi::ThreadPool& pool, int64_t lines, Body body) {
  if (lines > 4) return in_parallel(pool, lines, body);
  for (int64_t line = 0; line < lines; ++line) body(line);
}

// Rows of GGUF's blocks as integers with a scale and an offset of every `block` terms, 16 or 32, in `memory`.
template <int planes>
Int8Rows split_rows(const Product<GgufByte>& product, int64_t row, int64_t rows, int64_t block, char* memory) {
  const int64_t scales = product.terms / block, fine = product.terms / 16, skip = block / 16;
  float *scale = reinterpret_cast<float*>(memory), *offset = scale + rows * scales, *fine_scale = offset + rows * scales;
  int32_t* start = reinterpret_cast<int32_t*>(fine_scale + 2 * fine);
  int8_t* numbers = reinterpret_cast<int8_t*>(start + rows * scales);
  bool has_offset = false;
  for (int64_t i = 0; i < rows; ++i, scale += scales, offset += scales) {
    const int32_t kind = product.kinds[row + i];
    const auto* bytes = reinterpret_cast<const uint8_t*>(product.weight) + 2 * static_cast<int64_t>(product.places[row + i]);
    onepass_gguf_split(kind, bytes, product.terms / onepass_gguf_block_numbers(kind), numbers + i * product.terms,
                       fine_scale, fine_scale + fine);
    for (int64_t n = 0; n < scales; ++n) {
      scale[n] = fine_scale[n * skip], offset[n] = fine_scale[fine + n * skip];
      has_offset |= offset[n] != 0;
    }
  }
  block_starts<planes>(numbers, rows * scales, block, start);
  scale -= rows * scales, offset -= rows * scales;
  return {numbers, scale, has_offset ? offset : nullptr, start};
}

// Some rows of a weight as they are multiplied: those of int8 where they lie, GGUF's blocks split. `memory` has room for
// as many float32 numbers as the rows have.
template <int planes, typename Weight>
Int8Rows integer_rows(const Product<Weight>& product, int64_t row, int64_t rows, int64_t block, char* memory) {
  if constexpr (kGguf<Weight>) return split_rows<planes>(product, row, rows, block, memory);
  else {
    const int64_t first = row * (product.terms / block);
    const int8_t* numbers = product.weight + row * product.terms;
    int32_t* start = reinterpret_cast<int32_t*>(memory);
    block_starts<planes>(numbers, rows * (product.terms / block), block, start);
    return {numbers, product.scale + first, product.offset ? product.offset + first : nullptr, start};
  }
}

// Terms of a scale in rows of weights: 16 or 32, or 0 where the rows are not all in integers.
template <typename Weight>
int64_t scale_terms(const Product<Weight>& product, int64_t row, int64_t rows) {
  if (product.terms % kScaleTerms) return 0;
  if constexpr (!kGguf<Weight>) return product.block;
  else {
    int64_t least = kScaleTerms;
    for (int64_t i = row; i < row + rows; ++i) least = std::min(least, onepass_gguf_scale_numbers(product.kinds[i]));
    return least;
  }
}

// Memory for a product's activations, rotated and quantised.
inline RotatedLines rotated_space(const Product<int8_t>& product) {
  const int64_t bytes = RotatedLines::bytes(product.lines(), product.terms, product.block);
  return RotatedLines(workspace<1>(bytes), product.lines(), product.terms, product.block);
}

// The same as `multiply`, of activations that are rotated and quantised.
template <int halves, typename Finish>
void multiply_rotated(ffi::ThreadPool& pool, const Product<int8_t>& product, const RotatedLines& x, int64_t each, Finish finish) {
  const int64_t results = product.results / halves, terms = product.terms, blocks = x.blocks;
  const int64_t groups = (product.lines() + kMaxLines - 1) / kMaxLines;  // of lines
  if (!groups || !results) return;
  const int64_t wanted = kTasks * std::max<int64_t>(1, pool.num_threads());
  if (!each) each = panel_rows(product.results, terms, halves, groups, wanted);
  const int64_t panels = (results + each - 1) / each;
  const int64_t ranges = std::clamp<int64_t>((wanted + panels - 1) / panels, 1, groups);
  in_parallel(pool, panels * ranges, [&](int64_t task) {
    const int64_t first = task % panels * each, rows = std::min(each, results - first), range = task / panels;
    const int64_t sums_floats = halves * rows * kMaxLines * kLine, half_bytes = RotatedRows::bytes(rows, blocks);
    float* sums = reinterpret_cast<float*>(workspace(4 * sums_floats + halves * half_bytes));
    auto panel = [&](int64_t half) {
      const int64_t row = half * results + first;
      return RotatedRows(product.weight + row * terms, product.scale + row * blocks, rows, terms, x.block,
                         reinterpret_cast<char*>(sums + sums_floats) + half * half_bytes);
    };
    const RotatedRows weight[] = {panel(0), panel(halves - 1)};
    for (int64_t group = groups * range / ranges; group < groups * (range + 1) / ranges; ++group) {
      const int64_t line = group * kMaxLines, lines = std::min<int64_t>(kMaxLines, product.lines() - line);
      for (int half = 0; half < halves; ++half)
        multiply_rotated_lines(lines, x, line, weight[half], sums + half * rows * lines * kLine);
      finish(sums, first, rows, line, lines);
    }
  });
}

// finish(sums, row, rows, line, lines) of every panel and block of lines, once. A panel has `each` rows, or as many as suit
// where that is 0. A gated product's panel has the same rows of both halves of the weight: its sums are [2, rows, lines, 16].
// With `planes` integers are multiplied where the weights are: activations have as many planes of 8 bits.
template <int halves, int planes, typename Weight, typename Finish>
void multiply(ffi::ThreadPool& pool, const Product<Weight>& product, const float* x, int64_t each, Finish finish) {
  if constexpr (kIntegerPlanes > 0 && std::is_same_v<Weight, int8_t>)
    if (is_rotated(product)) {
      const RotatedLines to = rotated_space(product);
      for_lines(pool, product.lines(), [&](int64_t line) {
        for (int64_t at = 0; at < to.blocks; ++at)
          quantize_rotated(to, line, at, [from = x + line * product.terms * kLine](int64_t d, int lane) { return load(from + d * kLine + lane); });
      });
      return multiply_rotated<halves>(pool, product, to, each, finish);
    }
  const int64_t results = product.results / halves, terms = product.terms;
  const int64_t blocks = (product.lines() + kMaxLines - 1) / kMaxLines;
  if (!blocks || !results) return;
  const int64_t wanted = kTasks * std::max<int64_t>(1, pool.num_threads());
  if (!each) each = panel_rows(product.results, terms, halves, blocks, wanted);
  const int64_t panels = (results + each - 1) / each;
  const int64_t ranges = std::clamp<int64_t>((wanted + panels - 1) / panels, 1, blocks);
  constexpr bool widened = !std::is_same_v<Weight, float>;
  constexpr bool integers = planes > 0 && (std::is_same_v<Weight, int8_t> || kGguf<Weight>);
  constexpr bool pairs = kBf16Pairs && std::is_same_v<Weight, bf16>;
  const bool whole = integers && kVnniRows && product.lines() > 2 * kMaxLines;
  const int64_t room = integers && terms % kScaleTerms == 0 ? QuantizedLines::bytes(product.lines(), terms, planes) : 0;
  const QuantizedLines narrow(room ? workspace<1>(room) : nullptr, product.lines(), terms, planes);
  if constexpr (integers)
    if (room) for_lines(pool, product.lines(), [&](int64_t line) { quantize_line<planes>(x + line * terms * kLine, narrow.from(line)); });
  bf16* rounded = nullptr;
  if constexpr (pairs) {
    rounded = reinterpret_cast<bf16*>(workspace<1>(sizeof(bf16) * product.lines() * line_numbers(terms)));
    for_lines(pool, product.lines(), [&](int64_t line) {
      round_line(x + line * terms * kLine, terms, rounded + line * line_numbers(terms));
    });
  }
  in_parallel(pool, panels * ranges, [&](int64_t task) {
    const int64_t first = task % panels * each, rows = std::min(each, results - first), range = task / panels;
    const int64_t sums_floats = (halves * rows + (pairs || kInt8Pairs)) * kMaxLines * kLine;
    const int64_t order_floats = integers ? ordered_bytes(rows, terms, 16) / 4 : 0;
    const int64_t weight_floats = pairs ? panel_numbers(rows, terms) / 2 : widened ? rows * terms + order_floats : 0;
    float* sums = reinterpret_cast<float*>(workspace(4 * (sums_floats + halves * weight_floats)));
    const float* weight[halves];
    Int8Rows integer[halves] = {};
    int64_t block_terms[halves] = {};
    for (int half = 0; half < halves; ++half) {
      const int64_t row = half * results + first;
      if constexpr (widened) {
        float* to = sums + sums_floats + half * weight_floats;
        if constexpr (integers) {
          block_terms[half] = scale_terms(product, row, rows);
          if (block_terms[half]) {
            integer[half] = integer_rows<planes>(product, row, rows, block_terms[half], reinterpret_cast<char*>(to));
            integer[half] = ordered_rows(integer[half], rows, terms, block_terms[half], reinterpret_cast<char*>(to + rows * terms));
            continue;
          }
        }
        if constexpr (pairs) pair_rows(product.weight + row * terms, rows, terms, reinterpret_cast<bf16*>(to));
        else widen_rows(product, row, rows, to);
        weight[half] = to;
      } else {
        weight[half] = product.weight + row * terms;
      }
    }
    const int64_t first_block = blocks * range / ranges;
    for (int64_t block = first_block; block < blocks * (range + 1) / ranges; ++block) {
      // Even blocks, or whole ones and a rest where a kernel is made for whole ones.
      const int64_t line = whole ? block * kMaxLines : product.lines() * block / blocks;
      const int64_t lines = (whole ? std::min(product.lines(), line + kMaxLines) : product.lines() * (block + 1) / blocks) - line;
      for (int half = 0; half < halves; ++half) {
        float* to = sums + half * rows * lines * kLine;
        if constexpr (integers) {
          if (block_terms[half]) {
            multiply_int8_lines<planes>(lines, narrow.from(line), integer[half], block_terms[half], rows, to);
            continue;
          }
        }
        if constexpr (pairs)
          multiply_bf16_pairs(rounded + line * line_numbers(terms), terms, reinterpret_cast<const bf16*>(weight[half]), rows, to);
        else if constexpr (widened) multiply_lines<false>(lines, x + line * terms * kLine, terms, weight[half], rows, to);
        else if (block == first_block) multiply_lines<true>(lines, x + line * terms * kLine, terms, weight[half], rows, to);
        else multiply_lines<false>(lines, x + line * terms * kLine, terms, weight[half], rows, to);
      }
      finish(sums, first, rows, line, lines);
    }
  });
}

// One by the root of the mean square of each token of a line.
inline void norm_factors(const float* line, int64_t terms, float eps, float (&by)[kLine]) {
  for (int i = 0; i < kLine; ++i) by[i] = 0;
  for (int64_t d = 0; d < terms; ++d)
    for (int i = 0; i < kLine; ++i) by[i] += line[d * kLine + i] * line[d * kLine + i];
  for (int i = 0; i < kLine; ++i) by[i] = 1.0f / std::sqrt(by[i] / static_cast<float>(terms) + eps);
}

// Of a residual stream, each token divided by the root of its mean square and multiplied by a weight, rotated and quantised.
template <typename Number>
RotatedLines rotated_normed(ffi::ThreadPool& pool, const Product<int8_t>& product, const float* stream, const Number* norm,
                            float eps) {
  const RotatedLines to = rotated_space(product);
  for_lines(pool, product.lines(), [&](int64_t line) {
    const float* from = stream + line * product.terms * kLine;
    alignas(64) float by[kLine];
    norm_factors(from, product.terms, eps, by);
    for (int64_t at = 0; at < to.blocks; ++at)
      quantize_rotated(to, line, at, [&](int64_t d, int lane) { return load(from + d * kLine + lane) * load(by + lane) * widen(norm[d]); });
  });
  return to;
}

// The same as it is. What is no token is 0 in its line.
template <typename Number, typename Weight>
void norm_lines(ffi::ThreadPool& pool, const Product<Weight>& product, const float* stream, const Number* norm, float eps,
                float* out) {
  const int64_t terms = product.terms;
  for_lines(pool, product.lines(), [=](int64_t line) {
    const float* from = stream + line * terms * kLine;
    float* to = out + line * terms * kLine;
    float by[kLine];
    norm_factors(from, terms, eps, by);
    for (int64_t d = 0; d < terms; ++d) {
      const float weight = widen(norm[d]);
      for (int i = 0; i < kLine; ++i) to[d * kLine + i] = from[d * kLine + i] * by[i] * weight;
    }
    for (int64_t i = std::min<int64_t>(kLine, product.tokens - line * kLine); i < kLine; ++i)
      for (int64_t d = 0; d < terms; ++d) to[d * kLine + i] = 0;
  });
}

// Tokens that lie one after another, into lines.
// The first `tokens` of them, at most a line.
template <typename Number>
void enter_line(int64_t tokens, int64_t terms, const Number* from, float* to) {
  int64_t d = 0;
  if constexpr (std::is_same_v<Number, float>)
    if (tokens >= kLine)
      for (; d + kWidth <= terms; d += kWidth)
        for (int64_t i = 0; i < kLine; i += kWidth) transpose(from + i * terms + d, terms, to + d * kLine + i, kLine);
  for (; d < terms; ++d)
    for (int64_t i = 0; i < kLine; ++i) to[d * kLine + i] = i < tokens ? widen(from[i * terms + d]) : 0.0f;
}

template <typename Number>
void enter_lines(ffi::ThreadPool& pool, int64_t tokens, int64_t terms, const Number* x, float* out) {
  for_lines(pool, (tokens + kLine - 1) / kLine, [=](int64_t line) {
    enter_line(tokens - line * kLine, terms, x + line * kLine * terms, out + line * terms * kLine);
  });
}

// The same, rotated and quantised.
template <typename Number>
RotatedLines rotated_entered(ffi::ThreadPool& pool, const Product<int8_t>& product, const Number* x) {
  const RotatedLines to = rotated_space(product);
  for_lines(pool, product.lines(), [&](int64_t line) {
    const int64_t terms = product.terms;
    float* entered = reinterpret_cast<float*>(workspace<2>(sizeof(float) * kLine * terms));
    enter_line(product.tokens - line * kLine, terms, x + line * kLine * terms, entered);
    for (int64_t at = 0; at < to.blocks; ++at)
      quantize_rotated(to, line, at, [=](int64_t d, int lane) { return load(entered + d * kLine + lane); });
  });
  return to;
}

// The same for `multiply`, which quantises what is rotated without writing it.
template <int halves, int planes, typename Number, typename Weight, typename Finish>
void multiply_normed(ffi::ThreadPool& pool, const Product<Weight>& product, const float* stream, const Number* norm, float eps,
                     float* space, int64_t each, Finish finish) {
  if constexpr (kIntegerPlanes > 0 && std::is_same_v<Weight, int8_t>)
    if (is_rotated(product)) return multiply_rotated<halves>(pool, product, rotated_normed(pool, product, stream, norm, eps), each, finish);
  norm_lines(pool, product, stream, norm, eps, space);
  multiply<halves, planes>(pool, product, space, each, finish);
}

// The tokens of a line one after another, [16, rows], of rows [rows, 16].
inline void leave_line(const float* from, int64_t rows, float* to, int64_t to_stride) {
  int64_t row = 0;
  for (; row + kWidth <= rows; row += kWidth)
    for (int token = 0; token < kLine; token += kWidth)
      transpose(from + row * kLine + token, kLine, to + token * to_stride + row, to_stride);
  for (; row < rows; ++row)
    for (int token = 0; token < kLine; ++token) to[token * to_stride + row] = from[row * kLine + token];
}

// The first `tokens` of a line.
template <typename Number>
void leave_tokens(const float* from, int64_t rows, int64_t tokens, Number* to, int64_t to_stride) {
  if constexpr (std::is_same_v<Number, float>)
    if (tokens == kLine) return leave_line(from, rows, to, to_stride);
  float* numbers = reinterpret_cast<float*>(workspace<4>(sizeof(float) * kLine * rows));
  leave_line(from, rows, numbers, rows);
  for (int64_t token = 0; token < tokens; ++token)
    for (int64_t i = 0; i < rows; ++i) narrow(numbers[token * rows + i], to + token * to_stride + i);
}

template <typename Weight>
const float* none_or(const Wide& bias, const Product<Weight>& product) {
  return bias.element_count() ? bias.typed_data() + product.layer * product.results : nullptr;
}

// Bias, norm and rotation of one head of a line's tokens: sums are `stride` apart, `head` is [size, 16], angles are
// [size / 2, 16]. Without `cos` nothing is rotated, without `norm` or `bias` nothing normed or added.
inline void finish_head(const float* sums, int64_t stride, int64_t size, const float* bias, const float* norm, float eps,
                        const float* cos, const float* sin, float* head) {
  const int64_t half = size / 2;
  for (int lane = 0; lane < kLine; lane += kWidth) {
    Vector by = splat(1.0f);
    auto number = [&](int64_t d) { return load(sums + d * stride + lane) + (bias ? bias[d] : 0.0f); };
    if (norm) {
      Vector squares = {};
      for (int64_t d = 0; d < size; ++d) squares += number(d) * number(d);
      alignas(64) float each[kWidth];
      store(each, squares);
      for (float& one : each) one = 1.0f / std::sqrt(one / static_cast<float>(size) + eps);
      by = load(each);
    }
    auto normed = [&](int64_t d) { return norm ? number(d) * by * norm[d] : number(d); };
    for (int64_t d = 0; d < half; ++d) {
      Vector a = normed(d), b = normed(half + d);
      if (cos) {
        const Vector c = load(cos + d * kLine + lane), s = load(sin + d * kLine + lane), x = a;
        a = x * c - b * s;
        b = b * c + x * s;
      }
      store(head + d * kLine + lane, a);
      store(head + (half + d) * kLine + lane, b);
    }
  }
}

// Of a residual stream, normed: [tokens, kv_heads, group, size] and twice [tokens, kv_heads, size]; a weight's results are
// [kv_heads, group + 2, size]. A panel is a head, whose norm and rotation follow. Padding is 0.
template <typename Number, typename Weight>
ffi::Error qkv(ffi::ThreadPool pool, Wide stream, Index count, Numbers<Number> norm, Numbers<Weight> weight,
               Scales<Weight> scale, Offsets<Weight> offset, Index at, Wide bias, Wide q_norm, Wide k_norm, Wide cos, Wide sin, ffi::Result<Numbers<Number>> q,
               ffi::Result<Numbers<Number>> k, ffi::Result<Numbers<Number>> v, ffi::Result<Wide> space, float eps) {
  const auto d = q->dimensions();
  const int64_t terms = stream.dimensions()[1], kv_heads = d[1], group = d[2], size = d[3];
  auto made = product_of<Weight>(d[0], count, weight, scale, offset, terms, at);
  if (made.has_error()) return made.error();
  const Product<Weight> product = *made;
  if (product.results != kv_heads * (group + 2) * size || size % 2)
    return ffi::Error::InvalidArgument("a weight's rows are not those of all heads");
  const float* added = none_or(bias, product);
  const int64_t line_angles = size / 2 * kLine;
  float* angles[2] = {reinterpret_cast<float*>(workspace<2>(2 * sizeof(float) * line_angles * product.lines()))};
  angles[1] = angles[0] + line_angles * product.lines();
  enter_lines(pool, product.tokens, size / 2, cos.typed_data(), angles[0]);
  enter_lines(pool, product.tokens, size / 2, sin.typed_data(), angles[1]);
  const float* norms[2] = {nullptr, nullptr};
  if (q_norm.element_count()) norms[0] = q_norm.typed_data() + product.layer * size;
  if (k_norm.element_count()) norms[1] = k_norm.typed_data() + product.layer * size;
  Number* to[3];
  const int64_t strides[3] = {kv_heads * group * size, kv_heads * size, kv_heads * size};
  ffi::Result<Numbers<Number>>* results[3] = {&q, &k, &v};
  for (int i = 0; i < 3; ++i) {
    to[i] = reinterpret_cast<Number*>((*results[i])->untyped_data());
    std::memset(to[i] + product.tokens * strides[i], 0, (d[0] - product.tokens) * strides[i] * sizeof(Number));
  }
  const Number* weights = numbers<Number>(norm) + product.layer * terms;
  multiply_normed<1, kQkvPlanes>(pool, product, stream.typed_data(), weights, eps, space->typed_data(), size, [&](const float* sums, int64_t row, int64_t, int64_t line, int64_t lines) {
    const int64_t head = row / size, kv_head = head / (group + 2), member = head % (group + 2);
    const int which = member < group ? 0 : member == group ? 1 : 2;
    Number* out = to[which] + (which ? kv_head : kv_head * group + member) * size;
    float* finished = reinterpret_cast<float*>(workspace<3>(sizeof(float) * kLine * size));
    for (int64_t i = line; i < line + lines; ++i) {
      const float* angle[2] = {angles[0] + i * line_angles, angles[1] + i * line_angles};
      const bool rotates = which < 2;
      finish_head(sums + (i - line) * kLine, lines * kLine, size, added ? added + row : nullptr,
                  rotates ? norms[which] : nullptr, eps, rotates ? angle[0] : nullptr, angle[1], finished);
      const int64_t tokens = std::min<int64_t>(kLine, product.tokens - i * kLine);
      leave_tokens(finished, size, tokens, out + i * kLine * strides[which], strides[which]);
    }
  });
  return ffi::Error::Success();
}

// x in lines, its products and the bias added to the residual stream, which is in lines too; x is quantised already where it
// has an `x_block`.
template <typename Weight>
void add_products(ffi::ThreadPool& pool, const Product<Weight>& product, const float* x, const Wide& bias,
                  const Wide& residual, float* to, int64_t x_block = 0) {
  const float *from = residual.typed_data(), *added = none_or(bias, product);
  const int64_t results = product.results, real = product.lines() * results * kLine;
  if (to != from) std::memcpy(to + real, from + real, (residual.element_count() - real) * 4);
  auto finish = [=](const float* sums, int64_t row, int64_t rows, int64_t line, int64_t lines) {
    for (int64_t i = 0; i < lines; ++i)
      for (int64_t n = 0; n < rows; ++n) {
        const int64_t place = ((line + i) * results + row + n) * kLine;
        const float* sum = sums + (n * lines + i) * kLine;
        const float constant = added ? added[row + n] : 0.0f;
        for (int j = 0; j < kLine; ++j) to[place + j] = from[place + j] + (sum[j] + constant);
        // The same rows of the lines after these, while their products are summed.
        if (line + i + lines < product.lines()) __builtin_prefetch(from + place + lines * results * kLine, 1, 2);
      }
  };
  if constexpr (kIntegerPlanes > 0 && std::is_same_v<Weight, int8_t>)
    if (x_block) {
      char* quantized = const_cast<char*>(reinterpret_cast<const char*>(x));  // which nobody writes
      return multiply_rotated<1>(pool, product, RotatedLines(quantized, product.lines(), product.terms, x_block), 0, finish);
    }
  multiply<1, kIntegerPlanes>(pool, product, x, 0, finish);
}

// Of tokens one after another.
template <typename Number, typename Weight>
ffi::Error add(ffi::ThreadPool pool, Numbers<Number> x, Index count, Numbers<Weight> weight, Scales<Weight> scale,
               Offsets<Weight> offset, Index at, Wide bias, Wide residual, ffi::Result<Wide> out, ffi::Result<Wide> space) {
  const int64_t terms = x.dimensions().back();
  auto product = product_of<Weight>(x.dimensions()[0], count, weight, scale, offset, terms, at);
  if (product.has_error()) return product.error();
  if constexpr (kIntegerPlanes > 0 && std::is_same_v<Weight, int8_t>)
    if (is_rotated(*product)) {
      const RotatedLines to = rotated_entered(pool, *product, numbers<Number>(x));
      add_products(pool, *product, reinterpret_cast<const float*>(to.numbers), bias, residual, out->typed_data(), to.block);
      return ffi::Error::Success();
    }
  enter_lines(pool, product->tokens, terms, numbers<Number>(x), space->typed_data());
  add_products(pool, *product, space->typed_data(), bias, residual, out->typed_data());
  return ffi::Error::Success();
}

// Of tokens in lines, as `gate_up` leaves them: quantised with a scale of `x_block` terms, or, where that is 0, not.
template <typename Number, typename Weight>
ffi::Error add_lines(ffi::ThreadPool pool, Wide x, Index count, Numbers<Weight> weight, Scales<Weight> scale,
                     Offsets<Weight> offset, Index at, Wide bias, Wide residual, ffi::Result<Wide> out, int64_t x_block) {
  auto product = product_of<Weight>(x.dimensions()[0] * kLine, count, weight, scale, offset, x.dimensions()[1], at);
  if (product.has_error()) return product.error();
  const bool fits = !x_block || RotatedLines::bytes(product->lines(), product->terms, x_block) <= static_cast<int64_t>(x.size_bytes());
  if (!fits || (x_block && (!is_rotated(*product) || x_block != product->block)))
    return ffi::Error::InvalidArgument("quantised tokens must have the weight's blocks");
  add_products(pool, *product, x.typed_data(), bias, residual, out->typed_data(), x_block);
  return ffi::Error::Success();
}

// silu(gate) · up
inline Vector gated(Vector gate, Vector up) {
  const Vector power = smaller(gate * -1.4426950408889634f, splat(126.0f));
  return quotient(gate * up, 1.0f + power_of_two(power));
}

// silu(gate) · up, rotated and quantised. A task is one block of results for a range of lines.
inline void gate_up_rotated(ffi::ThreadPool& pool, const Product<int8_t>& product, const RotatedLines& x, const float* bias,
                            const RotatedLines& to) {
  constexpr int64_t some = 24;  // rows of each half at a time: their sums stay in the first cache
  const int64_t terms = product.terms, results = to.terms, rows = to.block, blocks = x.blocks;
  const int64_t groups = (product.lines() + kMaxLines - 1) / kMaxLines;  // of lines
  const int64_t wanted = kTasks * std::max<int64_t>(1, pool.num_threads());
  const int64_t ranges = groups ? std::clamp<int64_t>((wanted + to.blocks - 1) / to.blocks, 1, groups) : 0;
  in_parallel(pool, to.blocks * ranges, [&](int64_t task) {
    const int64_t block = task % to.blocks, first = block * rows, range = task / to.blocks;
    const int64_t parts = (rows + some - 1) / some, half_bytes = RotatedRows::bytes(rows, blocks);
    float* sums = reinterpret_cast<float*>(workspace(4 * (2 * some + rows) * kMaxLines * kLine + 2 * half_bytes));
    float* gate_up = sums + 2 * some * kMaxLines * kLine;  // [rows][line][16]
    char* memory = reinterpret_cast<char*>(gate_up + rows * kMaxLines * kLine);
    std::vector<RotatedRows> weight;
    for (int64_t part = 0; part < parts; ++part)
      for (int half = 0; half < 2; ++half) {
        const int64_t count = std::min(some, rows - part * some), row = half * results + first + part * some;
        weight.emplace_back(product.weight + row * terms, product.scale + row * blocks, count, terms, x.block, memory);
        memory += RotatedRows::bytes(count, blocks);
      }
    for (int64_t group = groups * range / ranges; group < groups * (range + 1) / ranges; ++group) {
      const int64_t line = group * kMaxLines, lines = std::min<int64_t>(kMaxLines, product.lines() - line);
      for (int64_t part = 0; part < parts; ++part) {
        const RotatedRows *gates = &weight[2 * part], *ups = gates + 1;
        const int64_t numbers = gates->rows * lines * kLine, row = part * some;
        multiply_rotated_lines(lines, x, line, *gates, sums);
        multiply_rotated_lines(lines, x, line, *ups, sums + numbers);
        for (int64_t i = 0; i < numbers; i += kWidth) {
          Vector gate = load(sums + i), up = load(sums + numbers + i);
          if (bias) {
            const int64_t at = first + row + i / (lines * kLine);
            gate += splat(bias[at]), up += splat(bias[results + at]);
          }
          store(gate_up + row * lines * kLine + i, gated(gate, up));
        }
      }
      for (int64_t i = 0; i < lines; ++i)
        quantize_rotated(to, line + i, block, [from = gate_up + i * kLine - first * lines * kLine, lines](int64_t d, int lane) {
          return load(from + d * lines * kLine + lane);
        });
    }
  });
}

// silu(gate) · up in lines, of a weight whose first half is the gate; with `out_block` rotated and quantised, with a scale of
// so many.
template <typename Number, typename Weight>
ffi::Error gate_up(ffi::ThreadPool pool, Wide stream, Index count, Numbers<Number> norm, Numbers<Weight> weight,
                   Scales<Weight> scale, Offsets<Weight> offset, Index at, Wide bias, ffi::Result<Wide> out, ffi::Result<Wide> space, float eps,
                   int64_t out_block) {
  const int64_t terms = stream.dimensions()[1];
  auto made = product_of<Weight>(stream.dimensions()[0] * kLine, count, weight, scale, offset, terms, at);
  if (made.has_error()) return made.error();
  const Product<Weight> product = *made;
  const int64_t results = product.results / 2;
  const float* added = none_or(bias, product);
  float* to = out->typed_data();
  const Number* weights = numbers<Number>(norm) + product.layer * terms;
  if (out_block) {
    if constexpr (kIntegerPlanes > 0 && std::is_same_v<Weight, int8_t>)
      if (is_rotated(product) && results % out_block == 0 && out_block % 32 == 0 && out_block <= kMaxRotated &&
          RotatedLines::bytes(product.lines(), results, out_block) <= static_cast<int64_t>(out->size_bytes())) {
        const RotatedLines to(reinterpret_cast<char*>(out->untyped_data()), product.lines(), results, out_block);
        gate_up_rotated(pool, product, rotated_normed(pool, product, stream.typed_data(), weights, eps), added, to);
        return ffi::Error::Success();
      }
    return ffi::Error::InvalidArgument("a gated product's results are quantised where its weights are rotated and there is room");
  }
  multiply_normed<2, kIntegerPlanes>(pool, product, stream.typed_data(), weights, eps, space->typed_data(), 0, [=](const float* sums, int64_t row, int64_t rows, int64_t line, int64_t lines) {
    const float *gate_bias = added ? added + row : nullptr, *up_bias = added ? added + results + row : nullptr;
    for (int64_t i = 0; i < lines; ++i) {
      float* out_line = to + ((line + i) * results + row) * kLine;
      const int64_t later = line + i + lines < product.lines() ? lines * results * kLine : 0;
      for (int64_t n = 0; n < rows; ++n) {
        __builtin_prefetch(out_line + later + n * kLine, 1, 2);  // where the products after these go
        for (int j = 0; j < kLine; j += kWidth) {
          const float* sum = sums + (n * lines + i) * kLine + j;
          Vector gate = load(sum), up = load(sum + rows * lines * kLine);
          if (gate_bias) gate += splat(gate_bias[n]), up += splat(up_bias[n]);
          store(out_line + n * kLine + j, gated(gate, up));
        }
      }
    }
  });
  return ffi::Error::Success();
}

// Rows of a matrix, widened: of an embedding, by tokens.
template <typename Number, typename Weight>
ffi::Error rows(ffi::ThreadPool pool, Index ids, Numbers<Weight> weight, Scales<Weight> scale, Offsets<Weight> offset,
                ffi::Result<Numbers<Number>> out) {
  const int64_t count = ids.element_count(), terms = out->dimensions().back();
  const int32_t none = 0;
  const auto* wanted = ids.typed_data();
  Product<Weight> product{count, terms, scale.dimensions()[1], numbers<Weight>(weight), none};
  product.places = scale.typed_data();
  product.kinds = offset.typed_data();
  Number* to = reinterpret_cast<Number*>(out->untyped_data());
  for_lines(pool, (count + kLine - 1) / kLine, [=](int64_t line) {
    std::vector<float> numbers(terms);
    for (int64_t i = line * kLine; i < std::min(count, (line + 1) * kLine); ++i) {
      widen_rows(product, std::clamp<int64_t>(wanted[i], 0, product.results - 1), 1, numbers.data());
      for (int64_t d = 0; d < terms; ++d) narrow(numbers[d], to + i * terms + d);
    }
  });
  return ffi::Error::Success();
}

// What the logits of some rows come to, of each of 16 tokens: the largest, its row, and Σ e^(logit - largest).
struct Largest {
  float top[kLine], row[kLine], sum[kLine];
};

// Of the rows of a panel, whose sums for a line are `stride` numbers apart; `bias` is theirs, or there is none.
inline void reduce_rows(const float* sums, int64_t stride, int64_t first, int64_t rows, const float* bias, Largest& to) {
  for (int lane = 0; lane < kLine; lane += kWidth) {
    Vector top = splat(-std::numeric_limits<float>::infinity()), best = splat(static_cast<float>(first)), sum = {};
    auto logit = [&](int64_t n) { return load(sums + n * stride + lane) + (bias ? bias[n] : 0.0f); };
    for (int64_t n = 0; n < rows; ++n) {
      const Vector value = logit(n);
      best = value > top ? splat(static_cast<float>(first + n)) : best;
      top = larger(value, top);
    }
    for (int64_t n = 0; n < rows; ++n) {
      const Vector value = logit(n);
      sum += power_of_two((value - top) * 1.4426950408889634f) + (value - value);  // what is no number stays visible
    }
    store(to.top + lane, top), store(to.row + lane, best), store(to.sum + lane, sum);
  }
}

// Over the rows of an LM head, for each token: log Σ e^logit, the largest logit and the first row that has it. No logit is
// kept. Panels are always of as many rows, so that a token's sum is the same whoever its neighbours are.
template <typename Number, typename Weight>
ffi::Error vocabulary(ffi::ThreadPool pool, Numbers<Number> x, Index count, Numbers<Weight> weight, Scales<Weight> scale,
                      Offsets<Weight> offset, Index at, Wide bias, ffi::Result<Wide> out, ffi::Result<Wide> space) {
  const auto made = product_of<Weight>(x.dimensions()[0], count, weight, scale, offset, x.dimensions()[1], at);
  if (made.has_error()) return made.error();
  const Product<Weight> product = *made;
  const float* added = none_or(bias, product);
  float* to = out->typed_data();
  std::memset(to, 0, out->size_bytes());
  enter_lines(pool, product.tokens, product.terms, numbers<Number>(x), space->typed_data());
  const int64_t panels = (product.results + kMostRows - 1) / kMostRows;
  std::vector<Largest> parts(panels * product.lines());
  multiply<1, 0>(pool, product, space->typed_data(), kMostRows, [&](const float* sums, int64_t row, int64_t rows, int64_t line, int64_t lines) {
    for (int64_t i = 0; i < lines; ++i)
      reduce_rows(sums + i * kLine, lines * kLine, row, rows, added ? added + row : nullptr,
                  parts[row / kMostRows * product.lines() + line + i]);
  });
  for (int64_t token = 0; token < product.tokens; ++token, to += 3) {
    auto part = [&](int64_t panel) -> const Largest& { return parts[panel * product.lines() + token / kLine]; };
    const int64_t lane = token % kLine;
    int64_t best = 0;
    for (int64_t panel = 1; panel < panels; ++panel)
      if (part(panel).top[lane] > part(best).top[lane]) best = panel;
    const float top = part(best).top[lane];
    double sum = 0;
    for (int64_t panel = 0; panel < panels; ++panel)
      sum += part(panel).sum[lane] * std::exp(static_cast<double>(part(panel).top[lane]) - top);
    to[0] = static_cast<float>(top + std::log(sum)), to[1] = top, to[2] = part(best).row[lane];
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace onepass

using namespace onepass;
namespace ffi = xla::ffi;

#define ONEPASS_PRODUCTS(name, Number, Weight)                                                                        \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                                      \
      onepass_cpu_qkv_##name, (qkv<Number, Weight>),                                                                  \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Wide>().Arg<Index>().Arg<Numbers<Number>>()                         \
          .Arg<Numbers<Weight>>().Arg<Scales<Weight>>().Arg<Offsets<Weight>>()                                        \
          .Arg<Index>().Arg<Wide>().Arg<Wide>().Arg<Wide>().Arg<Wide>()                                               \
          .Arg<Wide>().Ret<Numbers<Number>>().Ret<Numbers<Number>>().Ret<Numbers<Number>>().Ret<Wide>()               \
          .Attr<float>("eps"));                                                                                       \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                                      \
      onepass_cpu_add_##name, (add<Number, Weight>),                                                                  \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Numbers<Number>>().Arg<Index>().Arg<Numbers<Weight>>()              \
          .Arg<Scales<Weight>>().Arg<Offsets<Weight>>()                                                               \
          .Arg<Index>().Arg<Wide>().Arg<Wide>().Ret<Wide>().Ret<Wide>());                                             \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                                      \
      onepass_cpu_add_lines_##name, (add_lines<Number, Weight>),                                                      \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Wide>().Arg<Index>().Arg<Numbers<Weight>>()                         \
          .Arg<Scales<Weight>>().Arg<Offsets<Weight>>().Arg<Index>().Arg<Wide>().Arg<Wide>().Ret<Wide>()              \
          .Attr<int64_t>("x_block"));                                                                                 \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                                      \
      onepass_cpu_gate_up_##name, (gate_up<Number, Weight>),                                                          \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Wide>().Arg<Index>().Arg<Numbers<Number>>()                         \
          .Arg<Numbers<Weight>>().Arg<Scales<Weight>>().Arg<Offsets<Weight>>()                                        \
          .Arg<Index>().Arg<Wide>().Ret<Wide>().Ret<Wide>()                                                           \
          .Attr<float>("eps").Attr<int64_t>("out_block"))

#define ONEPASS_VOCABULARY(name, Number, Weight)                                                                      \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                                      \
      onepass_cpu_vocabulary_##name, (vocabulary<Number, Weight>),                                                    \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Numbers<Number>>().Arg<Index>().Arg<Numbers<Weight>>()              \
          .Arg<Scales<Weight>>().Arg<Offsets<Weight>>().Arg<Index>().Arg<Wide>().Ret<Wide>().Ret<Wide>())

#define ONEPASS_ROWS(name, Number, Weight)                                                                            \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                                      \
      onepass_cpu_rows_##name, (rows<Number, Weight>),                                                                \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Index>().Arg<Numbers<Weight>>().Arg<Scales<Weight>>()               \
          .Arg<Offsets<Weight>>().Ret<Numbers<Number>>())
