// Where a product's weights come from: rows in the network's own numbers, or in int8, which are widened. Rows in a GGUF
// file's blocks are gguf_rows.h.

#pragma once

#include "amx/planes.h"
#include "amx/tiles.h"
#include "xla/ffi/api/ffi.h"

namespace onepass {

using Scales = xla::ffi::Buffer<xla::ffi::F32>;
using Bytes = xla::ffi::Buffer<xla::ffi::S8>;

// Asks for 16 whole rows, in the order in which they lie in memory.
inline void fetch_rows(const void* rows, int64_t row_bytes) {
  const char* from = static_cast<const char*>(rows);
  for (int64_t at = 0; at < kRows * row_bytes; at += 64) _mm_prefetch(from + at, _MM_HINT_T0);
}

// How many layers lie in a buffer, the rows of each, and whether that is all there is.
struct Stacked {
  int64_t layers, results;
  bool fits;
};

template <typename Buffer>
Stacked stacked_rows(const Buffer& weight, int64_t terms) {
  const int64_t layers = weight.dimensions().front(), numbers = weight.element_count(), results = numbers / layers / terms;
  return {layers, results, numbers == layers * results * terms};
}

// Of each kind of rows, packing(row, term, count) is told which terms of 16 rows are wanted. What it returns packs 32 of
// them, from a term on, as the right operand of a product.

// All layers' in one buffer; `first` is the first row of one layer. Scales and offsets are empty.
template <typename Number>
struct PlainRows {
  using Buffer = Numbers<Number>;
  using Scale = Scales;
  using Offset = Scales;
  const Number* first;
  int64_t terms;

  PlainRows(const Buffer& weight, const Scales&, const Scales&, int64_t layer, int64_t results, int64_t terms)
      : first(numbers<Number>(weight) + layer * results * terms), terms(terms) {}
  static Stacked stacked(const Buffer& weight, const Scales&, int64_t terms) { return stacked_rows(weight, terms); }
  auto packing(int64_t row, int64_t, int64_t count) const {
    if (count == terms) fetch_rows(first + row * terms, terms * static_cast<int64_t>(sizeof(Number)));
    return [from = first + row * terms, terms = terms](int64_t term, char* tiles) {
      pack_transposed(from + term, terms, kRows, tiles);
    };
  }
};

// In int8, with a scale, and maybe an offset, of every `block` terms: 16, or a multiple of 32.
template <typename Number>
struct WidenedRows {
  using Buffer = Bytes;
  using Scale = Scales;
  using Offset = Scales;
  const int8_t* first;
  const float *scale, *offset;
  int64_t terms, block;

  WidenedRows(const Buffer& weight, const Scales& scales, const Scales& offsets, int64_t layer, int64_t results,
              int64_t terms)
      : first(weight.typed_data() + layer * results * terms), scale(nullptr), offset(nullptr), terms(terms), block(terms) {
    const int64_t blocks = scales.dimensions().back();
    scale = scales.typed_data() + layer * results * blocks;
    if (offsets.element_count()) offset = offsets.typed_data() + layer * results * blocks;
    block = terms / blocks;
  }
  static Stacked stacked(const Buffer& weight, const Scales&, int64_t terms) { return stacked_rows(weight, terms); }
  auto packing(int64_t row, int64_t, int64_t count) const {
    if (count == terms) fetch_rows(first + row * terms, terms);
    return [this, row](int64_t term, char* tiles) { tile(row, term, tiles); };
  }

 private:
  void tile(int64_t row, int64_t term, char* tiles) const {
    constexpr int planes = kPlanes<Number>;
    alignas(64) char lines[planes * kTileBytes];
    for (int i = 0; i < kRows; ++i) {
      const int8_t* from = first + (row + i) * terms + term;
      const int64_t low = (row + i) * (terms / block) + term / block, high = low + (block < kDepth ? 1 : 0);
      Pair wide = {_mm512_mul_ps(widened(from), _mm512_set1_ps(scale[low])),
                   _mm512_mul_ps(widened(from + 16), _mm512_set1_ps(scale[high]))};
      if (offset) wide = wide + Pair{_mm512_set1_ps(offset[low]), _mm512_set1_ps(offset[high])};
      put<planes>(wide, lines + 64 * i, kTileBytes);
    }
    for (int plane = 0; plane < planes; ++plane)
      transposed_tile(lines + plane * kTileBytes, 64, tiles + plane * kTileBytes);
  }
  static __m512 widened(const int8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
};

}  // namespace onepass
