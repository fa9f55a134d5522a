// A product's weights in the blocks of a quantised GGUF file, in the file's own bits: sixteen rows at a time are widened to
// the network's numbers, those of a file that was widened as it was read.

#pragma once

#include <algorithm>
#include <utility>

#include "amx/planes.h"
#include "amx/tiles.h"
#include "amx/weight_rows.h"
#include "common/threads.h"
#include "xla/ffi/api/ffi.h"

extern "C" bool onepass_gguf_dequantize(int32_t type, const uint8_t* blocks, int64_t count, float* out);
extern "C" bool onepass_gguf_widen_bf16(int32_t type, const uint8_t* blocks, int64_t numbers, uint16_t* out);
extern "C" int64_t onepass_gguf_block_numbers(int32_t type);
extern "C" int64_t onepass_gguf_block_bytes(int32_t type);

namespace onepass {

constexpr int64_t kMostNumbers = 256;  // of a block; those of every other type divide them
constexpr int64_t kPlaceBytes = 2;     // the unit of places

// All layers' in one buffer, with a place among its bytes and a block type for every row, [layers, results].
template <typename Number>
struct GgufRows {
  using Buffer = xla::ffi::Buffer<xla::ffi::U8>;
  using Scale = xla::ffi::Buffer<xla::ffi::U32>;  // places
  using Offset = Buffer;                          // block types
  const uint8_t* bytes;
  const uint32_t* places;
  const uint8_t* types;
  int64_t results, terms;

  GgufRows(const Buffer& blocks, const Scale& places, const Offset& types, int64_t layer, int64_t results, int64_t terms)
      : bytes(blocks.typed_data()), places(places.typed_data() + layer * results),
        types(types.typed_data() + layer * results), results(results), terms(terms) {}
  static Stacked stacked(const Buffer&, const Scale& places, int64_t) {
    const int64_t layers = places.dimensions().front();
    return {layers, static_cast<int64_t>(places.element_count()) / layers, true};
  }
  // Widens whole blocks of the rows, into the thread's memory, and asks for those of the next sixteen: the memory is what a
  // small step waits for.
  auto packing(int64_t row, int64_t term, int64_t count) const {
    const int64_t start = term / kMostNumbers * kMostNumbers;
    const int64_t end = std::min(terms, (term + count + kMostNumbers - 1) / kMostNumbers * kMostNumbers);
    const int64_t stride = end - start + kDepth;  // rows do not lie a power of two apart
    Number* wide = reinterpret_cast<Number*>(workspace<1>(kRows * stride * sizeof(Number)));
    for (int i = 0; i < kRows; ++i) {
      if (row + kRows + i < results) {
        const auto [from, size] = blocks_of(row + kRows + i, start, end);
        for (int64_t at = 0; at < size; at += 64) _mm_prefetch(reinterpret_cast<const char*>(from) + at, _MM_HINT_T0);
      }
      widen(types[row + i], blocks_of(row + i, start, end).first, end - start, wide + i * stride);
    }
    return [=](int64_t term, char* tiles) { pack_transposed(wide + term - start, stride, kRows, tiles); };
  }

 private:
  // Where a row's blocks of these terms begin, and their bytes.
  std::pair<const uint8_t*, int64_t> blocks_of(int64_t row, int64_t start, int64_t end) const {
    const int64_t numbers = onepass_gguf_block_numbers(types[row]), size = onepass_gguf_block_bytes(types[row]);
    const uint8_t* first = bytes + kPlaceBytes * static_cast<int64_t>(places[row]);
    return {first + start / numbers * size, (end - start) / numbers * size};
  }
  static void widen(int32_t type, const uint8_t* blocks, int64_t numbers, float* to) {
    onepass_gguf_dequantize(type, blocks, numbers / onepass_gguf_block_numbers(type), to);
  }
  static void widen(int32_t type, const uint8_t* blocks, int64_t numbers, bf16* to) {
    onepass_gguf_widen_bf16(type, blocks, numbers, to);
  }
};

}  // namespace onepass
