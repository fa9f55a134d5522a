// A product's weights in the blocks of a quantised GGUF file, in the file's own bits: sixteen rows at a time are widened to
// float32 and rounded to the network's numbers, those of a file that was widened as it was read.

#pragma once

#include <algorithm>

#include "amx/planes.h"
#include "amx/tiles.h"
#include "amx/weight_rows.h"
#include "common/threads.h"
#include "xla/ffi/api/ffi.h"

extern "C" bool onepass_gguf_dequantize(int32_t type, const uint8_t* blocks, int64_t count, float* out);
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
  int64_t terms;

  GgufRows(const Buffer& blocks, const Scale& places, const Offset& types, int64_t layer, int64_t results, int64_t terms)
      : bytes(blocks.typed_data()), places(places.typed_data() + layer * results),
        types(types.typed_data() + layer * results), terms(terms) {}
  static Stacked stacked(const Buffer&, const Scale& places, int64_t) {
    const int64_t layers = places.dimensions().front();
    return {layers, static_cast<int64_t>(places.element_count()) / layers, true};
  }
  // Widens whole blocks of the rows, into the thread's memory.
  auto packing(int64_t row, int64_t term, int64_t count) const {
    const int64_t start = term / kMostNumbers * kMostNumbers;
    const int64_t end = std::min(terms, (term + count + kMostNumbers - 1) / kMostNumbers * kMostNumbers);
    const int64_t stride = end - start + kRows;  // rows do not lie a power of two apart
    float* wide = reinterpret_cast<float*>(workspace<1>(kRows * stride * sizeof(float)));
    for (int i = 0; i < kRows; ++i) {
      const int32_t type = types[row + i];
      const int64_t numbers = onepass_gguf_block_numbers(type), before = start / numbers;
      const uint8_t* blocks = bytes + kPlaceBytes * static_cast<int64_t>(places[row + i]);
      onepass_gguf_dequantize(type, blocks + before * onepass_gguf_block_bytes(type), end / numbers - before,
                              wide + i * stride);
    }
    return [=](int64_t term, char* tiles) {
      constexpr int planes = kPlanes<Number>;
      alignas(64) char lines[planes * kTileBytes];
      for (int i = 0; i < kRows; ++i) put<planes>(load(wide + i * stride + term - start), lines + 64 * i, kTileBytes);
      for (int plane = 0; plane < planes; ++plane)
        transposed_tile(lines + plane * kTileBytes, 64, tiles + plane * kTileBytes);
    };
  }
};

}  // namespace onepass
