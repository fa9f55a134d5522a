// A layer's products, x · weightᵀ in bf16 with float32 sums, with the work that follows them at their end.
//
// Weights are all layers' stacked, [layers, results, terms]; `at` says which layer. A part of a weight is brought into
// tiles' order once a call, in the caches of the core that uses it, for all tokens.

#include <algorithm>

#include "threads.h"
#include "tiles.h"

namespace onepass {
namespace {

namespace ffi = xla::ffi;
using Numbers = ffi::Buffer<ffi::BF16>;
using Wide = ffi::Buffer<ffi::F32>;
using Index = ffi::Buffer<ffi::S32>;

constexpr int64_t kPartBytes = 800 << 10;  // of a weight at a time: the rest of a core's second cache is for tokens

struct Shape {
  int64_t tokens, terms, results;
  const bf16* x;
  const bf16* weight;
};

// The layer's weight. `results` of a gated product count gate and up.
ffi::ErrorOr<Shape> shape_of(const Numbers& x, const Numbers& weight, const Index& at) {
  auto of = x.dimensions(), stacked = weight.dimensions();
  const int64_t terms = of.back(), layers = stacked.front();
  const int64_t tokens = x.element_count() / terms, results = weight.element_count() / layers / terms;
  const int64_t layer = at.typed_data()[0];
  if (terms % kDepth || results % kSide || weight.element_count() != layers * results * terms)
    return ffi::Error::InvalidArgument("terms must be a multiple of 32, results too, and both operands must fit");
  if (layer < 0 || layer >= layers) return ffi::Error::InvalidArgument("there is no such layer");
  return Shape{tokens, terms, results, reinterpret_cast<const bf16*>(x.untyped_data()),
               reinterpret_cast<const bf16*>(weight.untyped_data()) + layer * results * terms};
}

// For every block of 32 tokens and pair of weight tiles, finish(sums, token, pair, first, last) of its rows, some at a
// time, while the next block is multiplied. `rows(pair, half)` is the first of the 16 weight rows of a pair's half.
template <typename Rows, typename Finish>
void multiply(ffi::ThreadPool& pool, const Shape& shape, Rows rows, Finish finish) {
  const int64_t terms = shape.terms, stride = terms * 2, pairs = shape.results / kSide;
  const int steps = static_cast<int>(terms / kDepth);
  const int64_t pair_bytes = 2 * steps * kTileBytes;
  const int64_t wanted = 4 * std::max<int64_t>(1, pool.num_threads());  // parts, so that a slow core takes fewer
  const int64_t even = (pairs + wanted - 1) / wanted;
  const int64_t together = std::max<int64_t>(1, std::min(kPartBytes / pair_bytes, even));
  const int64_t parts = (pairs + together - 1) / together;
  in_parallel(pool, parts, [&](int64_t part) {
    const Tiles tiles;
    char* memory = workspace(together * pair_bytes + kSide * stride + 2 * kSide * kSide * 4);
    char* packed = memory;
    char* last = memory + together * pair_bytes;  // tokens that fill less than a block
    float* sums = reinterpret_cast<float*>(last + kSide * stride);
    float* before = sums + kSide * kSide;
    int64_t token_before = 0, pair_before = 0, rows_before = 0;
    const int64_t first = part * together, end = std::min(pairs, first + together);
    for (int64_t pair = first; pair < end; ++pair)
      for (int half = 0; half < 2; ++half)
        for (int step = 0; step < steps; ++step)
          pack_transposed(shape.weight + rows(pair, half) * terms + step * kDepth, stride,
                          packed + ((pair - first) * 2 + half) * steps * kTileBytes + step * kTileBytes);
    for (int64_t token = 0; token < shape.tokens; token += kSide) {
      const int64_t count = std::min<int64_t>(kSide, shape.tokens - token);
      const char* left = reinterpret_cast<const char*>(shape.x) + token * stride;
      if (count < kSide) {
        std::memset(last, 0, kSide * stride);
        std::memcpy(last, left, count * stride);
        left = last;
      }
      for (int64_t pair = first; pair < end; ++pair) {
        const char* right = packed + (pair - first) * pair_bytes;
        product(left, left + kRows * stride, stride, [&](int step) { return right + step * kTileBytes; },
                steps * kTileBytes, steps, sums, kSide * 4, [&](int step) {
                  finish(before, token_before, pair_before, rows_before * step / steps,
                         rows_before * (step + 1) / steps);
                });
        std::swap(sums, before);
        token_before = token, pair_before = pair, rows_before = count;
      }
    }
    finish(before, token_before, pair_before, 0, rows_before);
  });
}

auto in_order() {
  return [](int64_t pair, int half) { return pair * kSide + half * kRows; };
}

const float* none_or(const Wide& bias, const Index& at, int64_t results) {
  return bias.element_count() ? bias.typed_data() + at.typed_data()[0] * results : nullptr;
}

struct Halves {
  __m512 low, high;
};

// A row of sums, with the bias of these results.
Halves summed(const float* row, const float* bias, int64_t result) {
  __m512 low = _mm512_load_ps(row), high = _mm512_load_ps(row + kRows);
  if (bias) {
    low = _mm512_add_ps(low, _mm512_loadu_ps(bias + result));
    high = _mm512_add_ps(high, _mm512_loadu_ps(bias + result + kRows));
  }
  return {low, high};
}

// bf16 results.
ffi::Error plain(ffi::ThreadPool pool, Numbers x, Numbers weight, Index at, Wide bias, ffi::Result<Numbers> out) {
  auto shape = shape_of(x, weight, at);
  if (shape.has_error()) return shape.error();
  const int64_t results = shape->results;
  const float* added = none_or(bias, at, results);
  bf16* to = reinterpret_cast<bf16*>(out->untyped_data());
  multiply(pool, *shape, in_order(), [=](const float* sums, int64_t token, int64_t pair, int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      auto [low, high] = summed(sums + row * kSide, added, pair * kSide);
      _mm512_storeu_si512(to + (token + row) * results + pair * kSide, narrow(low, high));
    }
  });
  return ffi::Error::Success();
}

// float32 results, added to a residual stream of float32.
ffi::Error added(ffi::ThreadPool pool, Numbers x, Numbers weight, Index at, Wide bias, Wide residual,
                 ffi::Result<Wide> out) {
  auto shape = shape_of(x, weight, at);
  if (shape.has_error()) return shape.error();
  const int64_t results = shape->results;
  const float* constant = none_or(bias, at, results);
  const float* from = residual.typed_data();
  float* to = out->typed_data();
  multiply(pool, *shape, in_order(), [=](const float* sums, int64_t token, int64_t pair, int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      const int64_t place = (token + row) * results + pair * kSide;
      auto [low, high] = summed(sums + row * kSide, constant, pair * kSide);
      _mm512_storeu_ps(to + place, _mm512_add_ps(low, _mm512_loadu_ps(from + place)));
      _mm512_storeu_ps(to + place + kRows, _mm512_add_ps(high, _mm512_loadu_ps(from + place + kRows)));
    }
  });
  return ffi::Error::Success();
}

// silu(gate) · up, of a weight whose first half is the gate.
ffi::Error gated(ffi::ThreadPool pool, Numbers x, Numbers weight, Index at, ffi::Result<Numbers> out) {
  auto shape = shape_of(x, weight, at);
  if (shape.has_error()) return shape.error();
  const int64_t results = shape->results / 2;
  if (results % kRows) return ffi::Error::InvalidArgument("a gated product's results must be a multiple of 16");
  bf16* to = reinterpret_cast<bf16*>(out->untyped_data());
  auto rows = [=](int64_t pair, int half) { return half * results + pair * kRows; };
  multiply(pool, *shape, rows, [=](const float* sums, int64_t token, int64_t pair, int64_t first, int64_t end) {
    const __m512 one = _mm512_set1_ps(1.0f), minus_log2_e = _mm512_set1_ps(-1.4426950408889634f);
    for (int64_t row = first; row < end; ++row) {
      __m512 gate = _mm512_load_ps(sums + row * kSide), up = _mm512_load_ps(sums + row * kSide + kRows);
      __m512 least = _mm512_min_ps(_mm512_mul_ps(gate, minus_log2_e), _mm512_set1_ps(126.0f));
      __m512 value = _mm512_div_ps(_mm512_mul_ps(gate, up), _mm512_add_ps(one, power_of_two(least)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + (token + row) * results + pair * kRows),
                          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
    }
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace onepass

using namespace onepass;
namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_plain, plain,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Numbers>().Arg<Numbers>().Arg<Index>()
                                  .Arg<Wide>().Ret<Numbers>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_added, added,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Numbers>().Arg<Numbers>().Arg<Index>()
                                  .Arg<Wide>().Arg<Wide>().Ret<Wide>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_gated, gated,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Numbers>().Arg<Numbers>().Arg<Index>()
                                  .Ret<Numbers>());
