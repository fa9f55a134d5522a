// GGUF's quantised blocks widened to bfloat16: the numbers of gguf/gguf_dequantize.cc, rounded to the nearest. Numbers of
// 4 and 5 bits are looked up: those with a scale in common have no more than 16 or 32 values, and one instruction takes 32
// numbers' values from a register. A product is rounded before anything is added to it: this file is compiled
// with -ffp-contract=off.

#include "amx/planes.h"
#include "gguf/scales.h"

extern "C" bool onepass_gguf_dequantize(int32_t type, const uint8_t* blocks, int64_t count, float* out);
extern "C" int64_t onepass_gguf_block_bytes(int32_t type);

namespace onepass {
namespace {

typedef uint8_t Bytes __attribute__((vector_size(32), may_alias));
typedef uint8_t HalfBytes __attribute__((vector_size(16), may_alias));

Bytes load_bytes(const uint8_t* from) {
  Bytes out;
  std::memcpy(&out, from, sizeof(out));
  return out;
}

// 16 bytes of nibbles: the low ones are the first 16 numbers.
Bytes nibbles(const uint8_t* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const auto& bytes = reinterpret_cast<const HalfBytes&>(bits);
  const HalfBytes low = bytes & 15, high = bytes >> 4;
  const __m256i both = _mm256_set_m128i(reinterpret_cast<const __m128i&>(high), reinterpret_cast<const __m128i&>(low));
  return reinterpret_cast<const Bytes&>(both);
}

// Each bit of a word as the fifth of a number.
Bytes fifth_bits(const uint8_t* from) {
  uint32_t word;
  std::memcpy(&word, from, 4);
  const __m256i bits = _mm256_maskz_set1_epi8(word, 16);
  return reinterpret_cast<const Bytes&>(bits);
}

// The number of every lane, less `centre`, times scale, plus offset.
__m512 values(int first, float scale, float offset, float centre = 0) {
  alignas(64) static constexpr float numbers[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
  const __m512 number = _mm512_sub_ps(_mm512_load_ps(numbers + first), _mm512_set1_ps(centre));
  return _mm512_add_ps(_mm512_mul_ps(number, _mm512_set1_ps(scale)), _mm512_set1_ps(offset));
}

void look_up(__m512i values, Bytes numbers, bf16* out) {
  const __m512i indices = _mm512_cvtepu8_epi16(reinterpret_cast<const __m256i&>(numbers));
  _mm512_storeu_si512(out, _mm512_permutexvar_epi16(indices, values));
}

// 32 numbers of 4 or 5 bits, with a minimum or around 0.
template <bool five, bool minimum>
void simple(const uint8_t* block, bf16* out) {
  const uint8_t* bits = block + (minimum ? 4 : 2);
  const float scale = gguf::half(block), centre = minimum ? 0.0f : five ? 16.0f : 8.0f;
  const float offset = minimum ? gguf::half(block + 2) : -0.0f;
  const Bytes numbers = five ? nibbles(bits + 4) | fifth_bits(bits) : nibbles(bits);
  look_up(narrow({values(0, scale, offset, centre), values(16, scale, offset, centre)}), numbers, out);
}

// 32 numbers of 8 bits.
void q8_0(const uint8_t* block, bf16* out) {
  const __m512 scale = _mm512_set1_ps(gguf::half(block));
  auto part = [&](int i) {
    const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2 + i));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(numbers)), scale);
  };
  store(out, Pair{part(0), part(16)});
}

// 256 numbers of 4 bits: two groups' values are in one register.
void q4_k(const uint8_t* block, bf16* out) {
  const gguf::Scales scales(block);
  for (int group = 0; group < 8; group += 2) {
    const Bytes bits = load_bytes(block + 16 + 16 * group);
    const __m512i found = narrow({values(0, scales.scale[group], -scales.minimum[group]),
                                  values(0, scales.scale[group + 1], -scales.minimum[group + 1])});
    look_up(found, bits & 15, out + 32 * group);
    look_up(found, bits >> 4 | 16, out + 32 * group + 32);
  }
}

void q5_k(const uint8_t* block, bf16* out) {
  const gguf::Scales scales(block);
  const Bytes high = load_bytes(block + 16);
  for (int group = 0; group < 8; ++group) {
    const Bytes bits = load_bytes(block + 48 + 32 * (group / 2)), low = group % 2 ? bits >> 4 : bits & 15;
    const float scale = scales.scale[group], offset = -scales.minimum[group];
    look_up(narrow({values(0, scale, offset), values(16, scale, offset)}), low | (high >> group & 1) << 4, out + 32 * group);
  }
}

// Scales of 16 numbers of 6 bits.
void q6_k(const uint8_t* block, bf16* out) {
  const float d = gguf::half(block + 208);
  for (int group = 0; group < 8; ++group, out += 32) {
    const Bytes bits = load_bytes(block + 64 * (group / 4) + 32 * (group % 2)), high = load_bytes(block + 128 + 32 * (group / 4));
    const Bytes low = group / 2 % 2 ? bits >> 4 : bits & 15;
    const Bytes numbers = (low | (high >> 2 * (group % 4) & 3) << 4) - 32;
    Pair wide;
    for (int part = 0; part < 2; ++part) {
      const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + 2 * group + part]));
      const __m512 number = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(reinterpret_cast<const __m128i*>(&numbers)[part]));
      (part ? wide.high : wide.low) = _mm512_mul_ps(number, _mm512_set1_ps(scale));
    }
    store(out, wide);
  }
}

// Of rows of floating-point numbers, beside quantised ones.
bool widened(int32_t type, const uint8_t* blocks, int64_t numbers, bf16* out) {
  alignas(64) float wide[kDepth];
  for (int64_t i = 0; i < numbers; i += kDepth) {
    if (!onepass_gguf_dequantize(type, blocks + i * onepass_gguf_block_bytes(type), kDepth, wide)) return false;
    store(out + i, load(wide));
  }
  return true;
}

template <void (*widen)(const uint8_t*, bf16*), int bytes, int numbers>
bool each_block(const uint8_t* blocks, int64_t total, bf16* out) {
  for (int64_t i = 0; i < total / numbers; ++i) widen(blocks + i * bytes, out + i * numbers);
  return true;
}

}  // namespace
}  // namespace onepass

// `numbers` is a multiple of 32, and of the type's block. False where the type is none of ours.
extern "C" bool onepass_gguf_widen_bf16(int32_t type, const uint8_t* blocks, int64_t numbers, uint16_t* out) {
  using namespace onepass;
  switch (type) {
    case 2: return each_block<simple<false, false>, 18, 32>(blocks, numbers, out);
    case 3: return each_block<simple<false, true>, 20, 32>(blocks, numbers, out);
    case 6: return each_block<simple<true, false>, 22, 32>(blocks, numbers, out);
    case 7: return each_block<simple<true, true>, 24, 32>(blocks, numbers, out);
    case 8: return each_block<q8_0, 34, 32>(blocks, numbers, out);
    case 12: return each_block<q4_k, 144, 256>(blocks, numbers, out);
    case 13: return each_block<q5_k, 176, 256>(blocks, numbers, out);
    case 14: return each_block<q6_k, 210, 256>(blocks, numbers, out);
    default: return widened(type, blocks, numbers, out);
  }
}
