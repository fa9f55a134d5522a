// The numbers that arrays hold, float32 or bf16 (weights also int8, or bytes of GGUF's blocks), one at a time and as
// XLA's buffers.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "xla/ffi/api/ffi.h"

namespace onepass {

using bf16 = uint16_t;
enum class GgufByte : uint8_t {};  // of a quantised block

template <typename Number>
constexpr xla::ffi::DataType kType = std::is_same_v<Number, float>    ? xla::ffi::F32
                                     : std::is_same_v<Number, int8_t> ? xla::ffi::S8
                                     : std::is_same_v<Number, GgufByte> ? xla::ffi::U8
                                                                        : xla::ffi::BF16;

template <typename Number>
using Numbers = xla::ffi::Buffer<kType<Number>>;

template <typename Number>
const Number* numbers(const Numbers<Number>& buffer) {
  return reinterpret_cast<const Number*>(buffer.untyped_data());
}

inline float widen(float number) { return number; }
inline float widen(bf16 number) {
  const uint32_t bits = static_cast<uint32_t>(number) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
inline void narrow(float number, float* to) { *to = number; }
inline void narrow(float number, bf16* to) {  // to the nearest, halves to even; the sums of finite numbers are finite
  uint32_t bits;
  std::memcpy(&bits, &number, 4);
  *to = static_cast<bf16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace onepass
