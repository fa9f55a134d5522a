// GGUF's quantised blocks widened to float32, as the `gguf` package's NumPy code defines them, bit for bit. A product is
// rounded before anything is added to it: this file is compiled with -ffp-contract=off.
//
//   Q4_0  d, 16 bytes of nibbles            d · (q - 8)      Q4_1  d, m, nibbles           d · q + m
//   Q5_0  d, 32 high bits, nibbles          d · (q - 16)     Q5_1  d, m, high bits, nibbles d · q + m
//   Q8_0  d, 32 signed bytes                d · q
//   F32, F16, BF16: a number each           (only for rows beside quantised ones)
//   Q4_K, Q5_K, Q6_K: 256 numbers in groups of 32 (Q6_K: 16), whose scales are small integers times d
//
// Every one of them is scale · number + offset with a number of at most 8 bits, in groups of 16 or 32: `..._split` gives
// these apart, for weights that stay in 8 bits. Numbers are around 0, also of types with a minimum, whose bits have
// their middle subtracted: an activation's rounding counts times the number, and beside an offset activations are not rounded.

#include <cstdint>
#include <cstring>

#include "gguf/scales.h"

namespace {

using gguf::half;
using gguf::Scales;

inline uint32_t word(const uint8_t* bytes) {
  uint32_t bits;
  std::memcpy(&bits, bytes, 4);
  return bits;
}

void f32(const uint8_t* block, float* out) { std::memcpy(out, block, 4); }
void f16(const uint8_t* block, float* out) { *out = half(block); }
void bf16(const uint8_t* block, float* out) {
  const uint8_t wide[4] = {0, 0, block[0], block[1]};
  std::memcpy(out, wide, 4);
}

// Sixteen numbers at a time, by the compiler's vectors.
typedef uint8_t Bytes __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef float Floats __attribute__((vector_size(64)));
typedef float LooseFloats __attribute__((vector_size(64), aligned(4), may_alias));

inline Bytes load(const uint8_t* bytes) {
  Bytes out;
  std::memcpy(&out, bytes, 16);
  return out;
}
// bytes - offset, in two steps: GCC 12 converts bytes to floats, and signed ones to anything, one after another.
inline Floats widened(Bytes bytes, int32_t offset = 0) {
  return __builtin_convertvector(__builtin_convertvector(bytes, Ints) - offset, Floats);
}
inline void store(float* to, Floats value) { *reinterpret_cast<LooseFloats*>(to) = value; }

void q8_0(const uint8_t* block, float* out) {
  const float d = half(block);
  for (int i = 0; i < 32; i += 16) store(out + i, widened(load(block + 2 + i) ^ 128, 128) * d);
}

// 16 bytes of nibbles: the low ones are the first 16 numbers.
void q4_0(const uint8_t* block, float* out) {
  const float d = half(block);
  const Bytes bytes = load(block + 2);
  store(out, widened(bytes & 15, 8) * d);
  store(out + 16, widened(bytes >> 4, 8) * d);
}

void q4_1(const uint8_t* block, float* out) {
  const float d = half(block), m = half(block + 2);
  const Bytes bytes = load(block + 4);
  store(out, widened(bytes & 15) * d + m);
  store(out + 16, widened(bytes >> 4) * d + m);
}

// The low 16 bits of `high`, each as the fifth bit of a number.
inline Bytes fifth_bits(uint32_t high) {
  const uint8_t low = high & 255, next = (high >> 8) & 255;
  const Bytes bytes = {low, low, low, low, low, low, low, low, next, next, next, next, next, next, next, next};
  const Bytes bits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  return reinterpret_cast<Bytes>((bytes & bits) == bits) & 16;
}

void q5_0(const uint8_t* block, float* out) {
  const float d = half(block);
  const Bytes bytes = load(block + 6);
  const uint32_t high = word(block + 2);
  store(out, widened(bytes & 15 | fifth_bits(high), 16) * d);
  store(out + 16, widened(bytes >> 4 | fifth_bits(high >> 16), 16) * d);
}

void q5_1(const uint8_t* block, float* out) {
  const float d = half(block), m = half(block + 2);
  const Bytes bytes = load(block + 8);
  const uint32_t high = word(block + 4);
  store(out, widened(bytes & 15 | fifth_bits(high)) * d + m);
  store(out + 16, widened(bytes >> 4 | fifth_bits(high >> 16)) * d + m);
}

void q4_k(const uint8_t* block, float* out) {
  const Scales scales(block);
  for (int group = 0; group < 8; ++group)
    for (int i = 0; i < 32; i += 16) {
      const Bytes bytes = load(block + 16 + 32 * (group / 2) + i);
      const Bytes numbers = group % 2 ? bytes >> 4 : bytes & 15;
      store(out + 32 * group + i, widened(numbers) * scales.scale[group] - scales.minimum[group]);
    }
}

void q5_k(const uint8_t* block, float* out) {
  const Scales scales(block);
  for (int group = 0; group < 8; ++group)
    for (int i = 0; i < 32; i += 16) {
      const Bytes bytes = load(block + 48 + 32 * (group / 2) + i), high = load(block + 16 + i);
      const Bytes numbers = (group % 2 ? bytes >> 4 : bytes & 15) | ((high >> group) & 1) << 4;
      store(out + 32 * group + i, widened(numbers) * scales.scale[group] - scales.minimum[group]);
    }
}

void q6_k(const uint8_t* block, float* out) {
  const uint8_t* scales = block + 192;
  const float d = half(block + 208);
  for (int group = 0; group < 8; ++group)  // of 32 numbers: which nibbles, which two high bits
    for (int part = 0; part < 2; ++part) {
      const Bytes low = load(block + 64 * (group / 4) + 32 * (group % 2) + 16 * part);
      const Bytes high = load(block + 128 + 32 * (group / 4) + 16 * part);
      const Bytes numbers = ((group / 2) % 2 ? low >> 4 : low & 15) | ((high >> 2 * (group % 4)) & 3) << 4;
      const float scale = d * static_cast<float>(static_cast<int8_t>(scales[2 * group + part]));
      store(out + 32 * group + 16 * part, widened(numbers, 32) * scale);
    }
}

// What 16 numbers of a block have in common; a block is widened to whole numbers with scale 1 and offset 0 apart from it.
struct Group {
  float scale, offset;
};

// What is subtracted from a block's bits: the middle of their range.
uint8_t middle(int type) {
  switch (type) {
    case 2: case 3: case 12: return 8;
    case 6: case 7: case 13: return 16;
    case 14: return 32;
    default: return 0;
  }
}

void split_simple(int type, const uint8_t* block, int groups, Group* out) {
  const float d = half(block), offset = type == 3 || type == 7 ? half(block + 2) + middle(type) * d : 0.0f;
  for (int i = 0; i < groups; ++i) out[i] = {d, offset};
}

void split_k(int type, const uint8_t* block, Group* out) {
  const Scales scales(block);
  for (int i = 0; i < 16; ++i) {
    const float scale = scales.scale[i / 2];
    out[i] = {scale, middle(type) * scale - scales.minimum[i / 2]};
  }
}

void split_q6_k(const uint8_t* block, Group* out) {
  const float d = half(block + 208);
  for (int i = 0; i < 16; ++i) out[i] = {d * static_cast<float>(static_cast<int8_t>(block[192 + i])), 0.0f};
}

inline void store(int8_t* to, Bytes value) { std::memcpy(to, &value, 16); }

// The numbers of a block without scale and offset.
void integers(int type, const uint8_t* block, int8_t* out) {
  const uint8_t centre = middle(type);
  switch (type) {
    case 2:
    case 3: {
      const Bytes bytes = load(block + (type == 2 ? 2 : 4));
      store(out, (bytes & 15) - centre);
      store(out + 16, (bytes >> 4) - centre);
      return;
    }
    case 6:
    case 7: {
      const Bytes bytes = load(block + (type == 6 ? 6 : 8));
      const uint32_t high = word(block + (type == 6 ? 2 : 4));
      store(out, (bytes & 15 | fifth_bits(high)) - centre);
      store(out + 16, (bytes >> 4 | fifth_bits(high >> 16)) - centre);
      return;
    }
    case 8:
      std::memcpy(out, block + 2, 32);
      return;
    case 12:
    case 13:
      for (int i = 0; i < 256; i += 16) {
        const int group = i / 32, place = i % 32;
        const Bytes bytes = load(block + (type == 12 ? 16 : 48) + 32 * (group / 2) + place);
        Bytes numbers = group % 2 ? bytes >> 4 : bytes & 15;
        if (type == 13) numbers |= ((load(block + 16 + place) >> group) & 1) << 4;
        store(out + i, numbers - centre);
      }
      return;
    default:
      for (int i = 0; i < 256; i += 16) {
        const int group = i / 32, place = i % 32;
        const Bytes low = load(block + 64 * (group / 4) + 32 * (group % 2) + place);
        const Bytes high = load(block + 128 + 32 * (group / 4) + place);
        store(out + i, (((group / 2) % 2 ? low >> 4 : low & 15) | ((high >> 2 * (group % 4)) & 3) << 4) - centre);
      }
  }
}

template <void (*widen)(const uint8_t*, float*), int bytes, int numbers>
void each_block(const uint8_t* blocks, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) widen(blocks + i * bytes, out + i * numbers);
}

}  // namespace

// `type` is GGML's number of the block type. False where it is none of ours.
extern "C" bool onepass_gguf_dequantize(int32_t type, const uint8_t* blocks, int64_t count, float* out) {
  switch (type) {
    case 0: each_block<f32, 4, 1>(blocks, count, out); return true;
    case 1: each_block<f16, 2, 1>(blocks, count, out); return true;
    case 30: each_block<bf16, 2, 1>(blocks, count, out); return true;
    case 2: each_block<q4_0, 18, 32>(blocks, count, out); return true;
    case 3: each_block<q4_1, 20, 32>(blocks, count, out); return true;
    case 6: each_block<q5_0, 22, 32>(blocks, count, out); return true;
    case 7: each_block<q5_1, 24, 32>(blocks, count, out); return true;
    case 8: each_block<q8_0, 34, 32>(blocks, count, out); return true;
    case 12: each_block<q4_k, 144, 256>(blocks, count, out); return true;
    case 13: each_block<q5_k, 176, 256>(blocks, count, out); return true;
    case 14: each_block<q6_k, 210, 256>(blocks, count, out); return true;
    default: return false;
  }
}

// The numbers of a block; 0 of types that are none of ours.
extern "C" int64_t onepass_gguf_block_numbers(int32_t type) {
  switch (type) {
    case 0: case 1: case 30: return 1;
    case 2: case 3: case 6: case 7: case 8: return 32;
    case 12: case 13: case 14: return 256;
    default: return 0;
  }
}

// Its bytes; 0 of types that are none of ours.
extern "C" int64_t onepass_gguf_block_bytes(int32_t type) {
  switch (type) {
    case 0: return 4;
    case 1: case 30: return 2;
    case 2: return 18;
    case 3: return 20;
    case 6: return 22;
    case 7: return 24;
    case 8: return 34;
    case 12: return 144;
    case 13: return 176;
    case 14: return 210;
    default: return 0;
  }
}

// How many numbers have a scale and an offset in common; 0 of types that are not quantised.
extern "C" int64_t onepass_gguf_scale_numbers(int32_t type) {
  return type == 14 ? 16 : type < 2 || type == 30 ? 0 : 32;
}

// The same blocks as numbers of 8 bits, and a scale and an offset of every 16 of them.
extern "C" bool onepass_gguf_split(int32_t type, const uint8_t* blocks, int64_t count, int8_t* numbers, float* scale,
                                   float* offset) {
  if (onepass_gguf_block_numbers(type) < 32) return false;
  const int64_t bytes = onepass_gguf_block_bytes(type);
  const int groups = type < 12 ? 2 : 16;
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* block = blocks + i * bytes;
    Group found[16];
    if (type < 12) split_simple(type, block, groups, found);
    else if (type < 14) split_k(type, block, found);
    else split_q6_k(block, found);
    integers(type, block, numbers + i * groups * 16);
    for (int g = 0; g < groups; ++g) {
      scale[i * groups + g] = found[g].scale;
      offset[i * groups + g] = found[g].offset;
    }
  }
  return true;
}
