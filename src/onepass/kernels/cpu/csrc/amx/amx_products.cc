// A layer's products, x · weightᵀ with float32 sums, with the norm before them and the work that follows at their end.
//
// Numbers are bf16, or float32 in planes of bf16 (planes.h). Weights are all layers' stacked, [layers, results, terms];
// `at` says which layer, and `count` how many tokens are real: the first ones, and work stops with the last of them. What
// the others get is 0, or what the residual stream has there. A part of a weight is brought into tiles' order once a call, in the caches of the core that uses
// it, for all tokens.

#include <algorithm>
#include <cmath>
#include <vector>

#include "amx/planes.h"
#include "amx/tiles.h"
#include "common/threads.h"

namespace onepass {
namespace {

namespace ffi = xla::ffi;
using Wide = ffi::Buffer<ffi::F32>;
using Index = ffi::Buffer<ffi::S32>;
using Space = ffi::Buffer<ffi::U8>;
using Tiled = ffi::Buffer<ffi::BF16>;

constexpr int64_t kPartBytes = 1100 << 10;  // of a weight at a time: the rest of a core's second cache is for tokens
constexpr int64_t kRange = 128;             // tokens at a time, for a core that helps another

template <typename Number>
struct Shape {
  int64_t tokens, terms, results;
  const Number* weight;  // the layer's
  int64_t layer;
};

// `results` of a gated product count gate and up.
template <typename Number>
ffi::ErrorOr<Shape<Number>> shape_of(int64_t tokens, const Index& count, const Numbers<Number>& weight,
                                       int64_t terms, const Index& at) {
  const int64_t layers = weight.dimensions().front(), results = weight.element_count() / layers / terms;
  const int64_t layer = at.typed_data()[0];
  if (terms % kDepth || results % kSide || static_cast<int64_t>(weight.element_count()) != layers * results * terms)
    return ffi::Error::InvalidArgument("terms must be a multiple of 32, results too, and both operands must fit");
  if (layer < 0 || layer >= layers) return ffi::Error::InvalidArgument("there is no such layer");
  tokens = std::clamp<int64_t>(count.typed_data()[0], 0, tokens);
  return Shape<Number>{tokens, terms, results, numbers<Number>(weight) + layer * results * terms, layer};
}

// Memory for the left operand, begun at a whole line; an error where it is too little.
template <typename Number, ffi::DataType type>
ffi::ErrorOr<Operand<kPlanes<Number>>> operand(const Shape<Number>& shape, ffi::Buffer<type>& memory) {
  using Left = Operand<kPlanes<Number>>;
  const auto at = reinterpret_cast<uintptr_t>(memory.untyped_data()), start = (at + 63) / 64 * 64;
  if (start + Left::bytes(shape.tokens, shape.terms) > at + memory.size_bytes())
    return ffi::Error::InvalidArgument("too little memory for tokens in tiles");
  return Left{reinterpret_cast<char*>(start), shape.terms / kDepth};
}

// Tokens as they are.
template <typename Number>
void enter(ffi::ThreadPool& pool, const Shape<Number>& shape, const Number* x, Operand<kPlanes<Number>> left) {
  in_parallel(pool, (shape.tokens + kSide - 1) / kSide, [&](int64_t block) {
    const int64_t end = std::min(shape.tokens, (block + 1) * kSide);
    for (int64_t token = block * kSide; token < end; ++token)
      for (int64_t step = 0; step < left.steps; ++step)
        put<kPlanes<Number>>(load(x + token * shape.terms + step * kDepth), left.line(token, step), left.kPlaneBytes);
  });
}

// Tokens of a residual stream, each divided by the root of its mean square and multiplied by a weight.
template <typename Number>
void enter_normed(ffi::ThreadPool& pool, const Shape<Number>& shape, const float* stream, const Number* norm, float eps,
                  Operand<kPlanes<Number>> left) {
  in_parallel(pool, (shape.tokens + kSide - 1) / kSide, [&](int64_t block) {
    const int64_t end = std::min(shape.tokens, (block + 1) * kSide);
    for (int64_t token = block * kSide; token < end; ++token) {
      const float* x = stream + token * shape.terms;
      Pair squares = both(0);
      for (int64_t i = 0; i < shape.terms; i += kDepth) squares = squares + load(x + i) * load(x + i);
      const float sum = _mm512_reduce_add_ps(_mm512_add_ps(squares.low, squares.high));
      const Pair by = both(1.0f / std::sqrt(sum / static_cast<float>(shape.terms) + eps));
      for (int64_t step = 0; step < left.steps; ++step) {
        Pair value = load(x + step * kDepth) * by;
        if constexpr (kPlanes<Number> == 1) value = widen(narrow(value));
        put<kPlanes<Number>>(value * load(norm + step * kDepth), left.line(token, step), left.kPlaneBytes);
      }
    }
  });
}

// Asks for 16 whole rows, in the order in which they lie in memory.
template <typename Number>
void fetch(const Number* rows, int64_t terms) {
  const char* from = reinterpret_cast<const char*>(rows);
  for (int64_t at = 0; at < kRows * terms * static_cast<int64_t>(sizeof(Number)); at += 64)
    _mm_prefetch(from + at, _MM_HINT_T0);
}

// For every block of 32 tokens and pair of weight tiles, finish(sums, token, pair, first, last) of its rows, some at a
// time, while the next block is multiplied. Sums are of `steps` steps of the terms from `start` on. `rows(pair, half)` is
// the first of the 16 weight rows of a pair's half.
template <typename Number, typename Rows, typename Finish>
void multiply(ffi::ThreadPool& pool, const Shape<Number>& shape, Operand<kPlanes<Number>> left, int64_t start,
              int64_t steps, Rows rows, Finish finish) {
  constexpr int planes = kPlanes<Number>;
  constexpr int64_t tiles_bytes = planes * kTileBytes;
  if (!shape.tokens) return;
  const int64_t pairs = shape.results / kSide, pair_bytes = 2 * steps * tiles_bytes;
  const int64_t threads = std::max<int64_t>(1, pool.num_threads());
  // Parts as large as a core's second cache can hold: all tokens pass it once a part.
  const int64_t rounds = (pairs * pair_bytes + threads * kPartBytes - 1) / (threads * kPartBytes);
  const int64_t together = (pairs + rounds * threads - 1) / (rounds * threads), parts = (pairs + together - 1) / together;
  const int turns = static_cast<int>(steps) * kTurns<planes>;
  std::vector<const char*> packed(parts);
  auto memory = [=] { return workspace(together * pair_bytes + 2 * kSide * kSide * 4); };
  auto pack = [&](int64_t part) {
    char* tiles = memory();
    packed[part] = tiles;
    for (int64_t pair = part * together; pair < std::min(pairs, (part + 1) * together); ++pair)
      for (int half = 0; half < 2; ++half) {
        const Number* from = shape.weight + rows(pair, half) * shape.terms + start * kDepth;
        if (steps == left.steps) fetch(from, shape.terms);
        for (int64_t step = 0; step < steps; ++step, tiles += tiles_bytes)
          pack_transposed(from + step * kDepth, shape.terms, kRows, tiles);
      }
  };
  auto work = [&](int64_t part, int64_t range) {
    const Tiles tiles;
    float* sums = reinterpret_cast<float*>(memory() + together * pair_bytes);
    float* before = sums + kSide * kSide;
    int64_t token_before = 0, pair_before = 0, rows_before = 0;
    const int64_t first = part * together, end = std::min(pairs, first + together);
    for (int64_t token = range * kRange; token < std::min(shape.tokens, (range + 1) * kRange); token += kSide) {
      const char* upper = left.block(token) + start * left.kStepBytes;
      for (int64_t pair = first; pair < end; ++pair) {
        const char* right = packed[part] + (pair - first) * pair_bytes;
        product<planes>(
            [&](int step, int plane) { return upper + step * left.kStepBytes + plane * left.kPlaneBytes; }, 64,
            kTileBytes, [&](int step, int plane) { return right + step * tiles_bytes + plane * kTileBytes; },
            steps * tiles_bytes, static_cast<int>(steps), sums, kSide * 4, [&](int turn) {
              finish(before, token_before, pair_before, rows_before * turn / turns, rows_before * (turn + 1) / turns);
            });
        std::swap(sums, before);
        token_before = token, pair_before = pair, rows_before = std::min<int64_t>(kSide, shape.tokens - token);
      }
    }
    finish(before, token_before, pair_before, 0, rows_before);
  };
  in_parts(pool, parts, (shape.tokens + kRange - 1) / kRange, pack, work);
}

auto in_order() {
  return [](int64_t pair, int half) { return pair * kSide + half * kRows; };
}

template <typename Number>
const float* none_or(const Wide& bias, const Shape<Number>& shape) {
  return bias.element_count() ? bias.typed_data() + shape.layer * shape.results : nullptr;
}

// A row of sums, with the bias of these results.
Pair summed(const float* row, const float* bias, int64_t result) {
  return bias ? load(row) + load(bias + result) : load(row);
}

// What nobody computes is 0.
template <typename Number>
void zero_padding(ffi::ThreadPool& pool, Number* to, int64_t real, int64_t total) {
  constexpr int64_t each = 1 << 18;
  in_parallel(pool, (total - real + each - 1) / each, [&](int64_t part) {
    const int64_t start = real + part * each;
    std::memset(to + start, 0, std::min(each, total - start) * sizeof(Number));
  });
}

// Of a residual stream, normed.
template <typename Number>
ffi::Error qkv(ffi::ThreadPool pool, Wide stream, Index count, Numbers<Number> norm, Numbers<Number> weight, Index at,
               Wide bias, ffi::Result<Numbers<Number>> out, ffi::Result<Space> space, float eps) {
  const int64_t terms = stream.dimensions().back();
  auto shape = shape_of<Number>(stream.element_count() / terms, count, weight, terms, at);
  if (shape.has_error()) return shape.error();
  auto left = operand(*shape, *space);
  if (left.has_error()) return left.error();
  enter_normed(pool, *shape, stream.typed_data(), numbers<Number>(norm) + shape->layer * terms, eps, *left);
  const int64_t results = shape->results;
  const float* added = none_or(bias, *shape);
  Number* to = reinterpret_cast<Number*>(out->untyped_data());
  zero_padding(pool, to, shape->tokens * results, out->element_count());
  multiply(pool, *shape, *left, 0, left->steps, in_order(),
           [=](const float* sums, int64_t token, int64_t pair, int64_t first, int64_t end) {
             for (int64_t row = first; row < end; ++row)
               store(to + (token + row) * results + pair * kSide, summed(sums + row * kSide, added, pair * kSide));
           });
  return ffi::Error::Success();
}

// The terms in so many steps at a time that eight pairs of weight tiles fit; sums meet in memory.
template <typename Number>
ffi::Error add_products(ffi::ThreadPool& pool, const Shape<Number>& shape, Operand<kPlanes<Number>> left,
                        const Wide& bias, const Wide& stream, float* to) {
  const float* residual = stream.typed_data();
  if (to != residual) {  // else the tokens that nobody computes keep what they have
    const int64_t real = shape.tokens * shape.results;
    std::memcpy(to + real, residual + real, (stream.element_count() - real) * 4);
  }
  const int64_t results = shape.results, most = kPartBytes / (8 * 2 * kPlanes<Number> * kTileBytes);
  const int64_t parts = (left.steps + most - 1) / most, each = (left.steps + parts - 1) / parts;
  for (int64_t start = 0; start < left.steps; start += each) {
    const float *constant = start ? nullptr : none_or(bias, shape), *from = start ? to : residual;
    multiply(pool, shape, left, start, std::min(each, left.steps - start), in_order(),
             [=](const float* sums, int64_t token, int64_t pair, int64_t first, int64_t end) {
               for (int64_t row = first; row < end; ++row) {
                 const int64_t place = (token + row) * results + pair * kSide;
                 store(to + place, summed(sums + row * kSide, constant, pair * kSide) + load(from + place));
               }
             });
  }
  return ffi::Error::Success();
}

// float32 results, added to a residual stream of float32.
template <typename Number>
ffi::Error add(ffi::ThreadPool pool, Numbers<Number> x, Index count, Numbers<Number> weight, Index at, Wide bias,
               Wide residual, ffi::Result<Wide> out, ffi::Result<Space> space) {
  const int64_t terms = x.dimensions().back();
  auto shape = shape_of<Number>(x.element_count() / terms, count, weight, terms, at);
  if (shape.has_error()) return shape.error();
  auto left = operand(*shape, *space);
  if (left.has_error()) return left.error();
  enter(pool, *shape, numbers<Number>(x), *left);
  return add_products(pool, *shape, *left, bias, residual, out->typed_data());
}

// The same of tokens that are in tiles' order already, as `gate_up` leaves them.
template <typename Number>
ffi::Error add_tiled(ffi::ThreadPool pool, Tiled x, Index count, Numbers<Number> weight, Index at, Wide bias,
                     Wide residual, ffi::Result<Wide> out) {
  const int64_t results = residual.dimensions().back(), layers = weight.dimensions().front();
  const int64_t terms = weight.element_count() / layers / results;
  auto shape = shape_of<Number>(residual.element_count() / results, count, weight, terms, at);
  if (shape.has_error()) return shape.error();
  auto left = operand(*shape, x);
  if (left.has_error()) return left.error();
  return add_products(pool, *shape, *left, bias, residual, out->typed_data());
}

// silu(gate) · up, of a weight whose first half is the gate, in tiles' order.
template <typename Number>
ffi::Error gate_up(ffi::ThreadPool pool, Wide stream, Index count, Numbers<Number> norm, Numbers<Number> weight, Index at,
                   ffi::Result<Tiled> out, ffi::Result<Space> space, float eps) {
  constexpr int planes = kPlanes<Number>;
  const int64_t terms = stream.dimensions().back();
  auto shape = shape_of<Number>(stream.element_count() / terms, count, weight, terms, at);
  if (shape.has_error()) return shape.error();
  auto left = operand(*shape, *space);
  if (left.has_error()) return left.error();
  const int64_t results = shape->results / 2;
  if (results % kDepth) return ffi::Error::InvalidArgument("a gated product's results must be a multiple of 32");
  auto activation = operand(Shape<Number>{shape->tokens, results}, *out);
  if (activation.has_error()) return activation.error();
  const Operand<planes> to = *activation;
  enter_normed(pool, *shape, stream.typed_data(), numbers<Number>(norm) + shape->layer * terms, eps, *left);
  auto rows = [=](int64_t pair, int half) { return half * results + pair * kRows; };
  multiply(pool, *shape, *left, 0, left->steps, rows,
           [=](const float* sums, int64_t token, int64_t pair, int64_t first, int64_t end) {
             const __m512 one = _mm512_set1_ps(1.0f), minus_log2_e = _mm512_set1_ps(-1.4426950408889634f);
             for (int64_t row = first; row < end; ++row) {
               auto [gate, up] = load(sums + row * kSide);
               __m512 least = _mm512_min_ps(_mm512_mul_ps(gate, minus_log2_e), _mm512_set1_ps(126.0f));
               __m512 value = _mm512_div_ps(_mm512_mul_ps(gate, up), _mm512_add_ps(one, power_of_two(least)));
               put<planes>(value, to.line(token + row, pair / 2) + pair % 2 * 32, to.kPlaneBytes);
             }
           });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace onepass

using namespace onepass;
namespace ffi = xla::ffi;

#define ONEPASS_PRODUCTS(name, Number)                                                                             \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_amx_qkv_##name, qkv<Number>,                                               \
                                ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Wide>().Arg<Index>()                   \
                                    .Arg<Numbers<Number>>().Arg<Numbers<Number>>().Arg<Index>().Arg<Wide>()        \
                                    .Ret<Numbers<Number>>().Ret<Space>().Attr<float>("eps"));                      \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_amx_add_##name, add<Number>,                                               \
                                ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Numbers<Number>>().Arg<Index>()        \
                                    .Arg<Numbers<Number>>().Arg<Index>().Arg<Wide>().Arg<Wide>().Ret<Wide>()       \
                                    .Ret<Space>());                                                                \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_amx_add_tiled_##name, add_tiled<Number>,                                   \
                                ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Tiled>().Arg<Index>()                  \
                                    .Arg<Numbers<Number>>().Arg<Index>().Arg<Wide>().Arg<Wide>().Ret<Wide>());     \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_amx_gate_up_##name, gate_up<Number>,                                       \
                                ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Wide>().Arg<Index>()                   \
                                    .Arg<Numbers<Number>>().Arg<Numbers<Number>>().Arg<Index>().Ret<Tiled>()       \
                                    .Ret<Space>().Attr<float>("eps"))

ONEPASS_PRODUCTS(bf16, bf16);
ONEPASS_PRODUCTS(f32, float);
