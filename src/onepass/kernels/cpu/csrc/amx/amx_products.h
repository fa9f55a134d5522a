// A layer's products, x · weightᵀ with float32 sums, with the norm before them and the work that follows at their end.
//
// Numbers are bf16, or float32 in planes of bf16 (planes.h). Weights are all layers' stacked, [layers, results, terms], in
// the network's numbers or widened from int8 (weight_rows.h); `at` says which layer, and `count` how many tokens are real:
// the first ones, and work stops with the last of them. What the others get is 0, or what the residual stream has there.
// A part of a weight is brought into tiles' order once a call, in the caches of the core that uses it, for all tokens.

#pragma once

#include <algorithm>
#include <cmath>

#include "amx/heads.h"
#include "amx/planes.h"
#include "amx/tiles.h"
#include "amx/weight_parts.h"
#include "amx/weight_rows.h"
#include "common/threads.h"

namespace onepass {

namespace ffi = xla::ffi;
using Wide = ffi::Buffer<ffi::F32>;
using Index = ffi::Buffer<ffi::S32>;
using Space = ffi::Buffer<ffi::U8>;
using Tiled = ffi::Buffer<ffi::BF16>;

struct Shape {
  int64_t tokens, terms, results, layer;
};

// `results` of a gated product count gate and up.
inline ffi::ErrorOr<Shape> shape_of(int64_t tokens, const Index& count, const Stacked& weight, int64_t terms,
                                    const Index& at) {
  const auto [layers, results, fits] = weight;
  const int64_t layer = at.typed_data()[0];
  if (terms % kDepth || results % kSide || !fits)
    return ffi::Error::InvalidArgument("terms must be a multiple of 32, results too, and both operands must fit");
  if (layer < 0 || layer >= layers) return ffi::Error::InvalidArgument("there is no such layer");
  return Shape{std::clamp<int64_t>(count.typed_data()[0], 0, tokens), terms, results, layer};
}

// Memory for the left operand, begun at a whole line; an error where it is too little.
template <typename Number, ffi::DataType type>
ffi::ErrorOr<Operand<kPlanes<Number>>> operand(const Shape& shape, ffi::Buffer<type>& memory) {
  using Left = Operand<kPlanes<Number>>;
  const auto at = reinterpret_cast<uintptr_t>(memory.untyped_data()), start = (at + 63) / 64 * 64;
  if (start + Left::bytes(shape.tokens, shape.terms) > at + memory.size_bytes())
    return ffi::Error::InvalidArgument("too little memory for tokens in tiles");
  return Left{reinterpret_cast<char*>(start), shape.terms / kDepth};
}

// Tokens as they are.
template <typename Number>
void enter(ffi::ThreadPool& pool, const Shape& shape, const Number* x, Operand<kPlanes<Number>> left) {
  in_parallel(pool, (shape.tokens + kSide - 1) / kSide, [&](int64_t block) {
    const int64_t end = std::min(shape.tokens, (block + 1) * kSide);
    for (int64_t token = block * kSide; token < end; ++token)
      for (int64_t step = 0; step < left.steps; ++step)
        put<kPlanes<Number>>(load(x + token * shape.terms + step * kDepth), left.line(token, step), left.kPlaneBytes);
  });
}

// What a token is multiplied by to have a mean square of 1.
inline float one_by_root(const float* x, int64_t terms, float eps) {
  Pair squares = both(0);
  for (int64_t i = 0; i < terms; i += kDepth) squares = squares + load(x + i) * load(x + i);
  const float sum = _mm512_reduce_add_ps(_mm512_add_ps(squares.low, squares.high));
  return 1.0f / std::sqrt(sum / static_cast<float>(terms) + eps);
}

// Tokens of a residual stream, each divided by the root of its mean square and multiplied by a weight.
template <typename Number>
void enter_normed(ffi::ThreadPool& pool, const Shape& shape, const float* stream, const Number* norm, float eps,
                  Operand<kPlanes<Number>> left) {
  in_parallel(pool, (shape.tokens + kSide - 1) / kSide, [&](int64_t block) {
    const int64_t end = std::min(shape.tokens, (block + 1) * kSide);
    for (int64_t token = block * kSide; token < end; ++token) {
      left.fetch(token + 2);
      const float* x = stream + token * shape.terms;
      const Pair by = both(one_by_root(x, shape.terms, eps));
      for (int64_t step = 0; step < left.steps; ++step) {
        Pair value = load(x + step * kDepth) * by;
        if constexpr (kPlanes<Number> == 1) value = widen(narrow(value));
        put<kPlanes<Number>>(value * load(norm + step * kDepth), left.line(token, step), left.kPlaneBytes);
      }
    }
  });
}

// For every block of 32 tokens and pair of weight tiles, finish(sums, token, pair, first, last) of its rows, some at a
// time, while the next block is multiplied. Sums are of `steps` steps of the terms from `start` on. `order(pair, half)` is
// the first of the 16 weight rows of a pair's half. fetch(token, pair) asks for what is going to be written of a token.
template <typename Number, typename Rows, typename Order, typename Finish, typename Fetch>
void multiply(ffi::ThreadPool& pool, const Shape& shape, Operand<kPlanes<Number>> left, Rows weight, int64_t start,
              int64_t steps, Order order, Finish finish, Fetch fetch) {
  constexpr int planes = kPlanes<Number>;
  constexpr int64_t tiles_bytes = planes * kTileBytes;
  const int64_t pair_bytes = 2 * steps * tiles_bytes;
  const int64_t turns = steps * kTurns<planes>;
  auto pack = [&](int64_t pair, char* tiles) {
    for (int half = 0; half < 2; ++half) {
      const auto pack_tile = weight.packing(order(pair, half), start * kDepth, steps * kDepth);
      for (int64_t step = 0; step < steps; ++step, tiles += tiles_bytes) pack_tile((start + step) * kDepth, tiles);
    }
  };
  auto work = [&](int64_t first, int64_t end, const char* packed, int64_t token, int64_t last, char* own) {
    float* const sums = reinterpret_cast<float*>(own);
    int64_t token_before = 0, pair_before = 0;
    Spread rows(0, turns);
    Ahead ahead;
    auto finish_row = [&](int64_t row) { finish(sums, token_before, pair_before, row, row + 1); };
    auto row_of = [&](int64_t token, int64_t pair) {
      return [&, token, pair](int64_t row) {
        fetch(token + row, pair);
        finish_row(row);
      };
    };
    Pending pending;
    for (; token < last; token += kSide) {
      const char* upper = left.block(token) + start * left.kStepBytes;
      if (token + kSide < shape.tokens) {
        const char* next = left.block(token + kSide) + start * left.kStepBytes;
        ahead = {next, next + steps * left.kStepBytes};
      }
      for (int64_t pair = first; pair < end; ++pair) {
        const char* right = packed + (pair - first) * pair_bytes;
        product<planes>(
            [&](int step, int plane) { return upper + step * left.kStepBytes + plane * left.kPlaneBytes; }, 64,
            kTileBytes, [&](int step, int plane) { return right + step * tiles_bytes + plane * kTileBytes; },
            steps * tiles_bytes, static_cast<int>(steps), pending, {own, kSide * 4}, [&, row = row_of(token, pair)] {
              ahead.turn();
              rows.turn(row);
            });
        rows.finish(finish_row);
        token_before = token, pair_before = pair;
        rows = Spread(std::min<int64_t>(kSide, shape.tokens - token), turns);
      }
    }
    store(pending);
    rows.finish(finish_row);
  };
  in_weight_parts(pool, shape.results / kSide, 1, pair_bytes, kSide * kSide * 4, shape.tokens, pack, work);
}

inline const float* none_or(const Wide& bias, const Shape& shape) {
  return bias.element_count() ? bias.typed_data() + shape.layer * shape.results : nullptr;
}

// A row of sums, with the bias of these results.
inline Pair summed(const float* row, const float* bias, int64_t result) {
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

// Of a residual stream, normed: q, k and v, with what follows (heads.h). Padding is 0.
template <typename Number, typename Rows>
ffi::Error qkv(ffi::ThreadPool pool, Wide stream, Index count, Numbers<Number> norm, typename Rows::Buffer weight,
               typename Rows::Scale scale, typename Rows::Offset offset, Index at, Wide bias, Wide q_norm, Wide k_norm,
               Wide cos, Wide sin, ffi::Result<Numbers<Number>> q, ffi::Result<Numbers<Number>> k,
               ffi::Result<Numbers<Number>> v, ffi::Result<Space> space, float eps) {
  const auto sizes = q->dimensions();
  const int64_t terms = stream.dimensions().back(), size = sizes[3];
  auto shape = shape_of(stream.element_count() / terms, count, Rows::stacked(weight, scale, terms), terms, at);
  if (shape.has_error()) return shape.error();
  auto left = operand<Number>(*shape, *space);
  if (left.has_error()) return left.error();
  if (size % kSide || shape->results != sizes[1] * (sizes[2] + 2) * size)
    return ffi::Error::InvalidArgument("a weight's rows must be those of all heads, with a multiple of 32 each");
  auto none_or_norm = [&](const Wide& norms) {
    return norms.element_count() ? norms.typed_data() + shape->layer * size : nullptr;
  };
  Number* const to[] = {reinterpret_cast<Number*>(q->untyped_data()), reinterpret_cast<Number*>(k->untyped_data()),
                        reinterpret_cast<Number*>(v->untyped_data())};
  const Heads<Number> heads{sizes[1], sizes[2], size, {to[0], to[1], to[2]}, none_or(bias, *shape),
                            {none_or_norm(q_norm), none_or_norm(k_norm)}, cos.typed_data(), sin.typed_data(), eps};
  enter_normed(pool, *shape, stream.typed_data(), numbers<Number>(norm) + shape->layer * terms, eps, *left);
  for (int i = 0; i < 3; ++i)
    zero_padding(pool, to[i], shape->tokens * heads.token_numbers(i), sizes[0] * heads.token_numbers(i));
  const Rows rows(weight, scale, offset, shape->layer, shape->results, terms);
  multiply<Number>(pool, *shape, *left, rows, 0, left->steps, heads.order(),
                   [=](const float* sums, int64_t token, int64_t pair, int64_t first, int64_t end) {
                     heads.finish(sums, token, pair, first, end);
                   },
                   [=](int64_t token, int64_t pair) { heads.fetch(token, pair); });
  heads.finish_normed(pool, shape->tokens);
  return ffi::Error::Success();
}

// Tokens that nobody computes keep what they have.
inline void keep_padding(const Shape& shape, const Wide& stream, float* to) {
  const int64_t real = shape.tokens * shape.results;
  if (to != stream.typed_data())
    std::memcpy(to + real, stream.typed_data() + real, (stream.element_count() - real) * 4);
}

// The terms in so many steps at a time that eight pairs of weight tiles fit; sums meet in memory.
template <typename Number, typename Rows>
void add_products(ffi::ThreadPool& pool, const Shape& shape, Operand<kPlanes<Number>> left, Rows rows, const Wide& bias,
                  const Wide& stream, float* to) {
  const float* residual = stream.typed_data();
  keep_padding(shape, stream, to);
  const int64_t results = shape.results, most = kPartBytes / (8 * 2 * kPlanes<Number> * kTileBytes);
  const int64_t parts = (left.steps + most - 1) / most, each = (left.steps + parts - 1) / parts;
  for (int64_t start = 0; start < left.steps; start += each) {
    const float *constant = start ? nullptr : none_or(bias, shape), *from = start ? to : residual;
    multiply<Number>(pool, shape, left, rows, start, std::min(each, left.steps - start), in_order(),
             [=](const float* sums, int64_t token, int64_t pair, int64_t first, int64_t end) {
               for (int64_t row = first; row < end; ++row) {
                 const int64_t place = (token + row) * results + pair * kSide;
                 store(to + place, summed(sums + row * kSide, constant, pair * kSide) + load(from + place));
               }
             },
             [=](int64_t token, int64_t pair) {
               fetch_to_write(to + token * results + pair * kSide);
               fetch_to_write(to + token * results + pair * kSide + kRows);
             });
  }
}

// float32 results, added to a residual stream of float32.
template <typename Number, typename Rows>
ffi::Error add(ffi::ThreadPool pool, Numbers<Number> x, Index count, typename Rows::Buffer weight,
               typename Rows::Scale scale, typename Rows::Offset offset, Index at, Wide bias, Wide residual, ffi::Result<Wide> out, ffi::Result<Space> space) {
  const int64_t terms = x.dimensions().back();
  auto shape = shape_of(x.element_count() / terms, count, Rows::stacked(weight, scale, terms), terms, at);
  if (shape.has_error()) return shape.error();
  auto left = operand<Number>(*shape, *space);
  if (left.has_error()) return left.error();
  enter(pool, *shape, numbers<Number>(x), *left);
  const Rows rows(weight, scale, offset, shape->layer, shape->results, terms);
  add_products<Number>(pool, *shape, *left, rows, bias, residual, out->typed_data());
  return ffi::Error::Success();
}

// The same of tokens that are in tiles' order already, as `gate_up` leaves them.
template <typename Number, typename Rows>
ffi::Error add_tiled(ffi::ThreadPool pool, Tiled x, Index count, typename Rows::Buffer weight,
                     typename Rows::Scale scale, typename Rows::Offset offset, Index at, Wide bias, Wide residual, ffi::Result<Wide> out) {
  const int64_t results = residual.dimensions().back(), terms = x.dimensions()[1] * kDepth;
  auto shape = shape_of(residual.element_count() / results, count, Rows::stacked(weight, scale, terms), terms, at);
  if (shape.has_error()) return shape.error();
  auto left = operand<Number>(*shape, x);
  if (left.has_error()) return left.error();
  const Rows rows(weight, scale, offset, shape->layer, results, terms);
  add_products<Number>(pool, *shape, *left, rows, bias, residual, out->typed_data());
  return ffi::Error::Success();
}

// silu(gate) · up; in one plane, which is cut to 16 bits, right to 7e-5.
template <int planes>
inline __m512 gated(Pair sums) {
  const auto [gate, up] = sums;
  const __m512 least = _mm512_min_ps(_mm512_mul_ps(gate, _mm512_set1_ps(-kLog2E)), _mm512_set1_ps(126.0f));
  const __m512 product = _mm512_mul_ps(gate, up), one = _mm512_set1_ps(1.0f);
  if constexpr (planes == 1)  // a division takes as long as thirty products
    return _mm512_mul_ps(product, _mm512_rcp14_ps(_mm512_add_ps(one, rough_power_of_two(least))));
  return _mm512_div_ps(product, _mm512_add_ps(one, power_of_two(least)));
}

// That, of a weight whose first half is the gate, in tiles' order.
template <typename Number, typename Rows>
ffi::Error gate_up(ffi::ThreadPool pool, Wide stream, Index count, Numbers<Number> norm, typename Rows::Buffer weight,
                   typename Rows::Scale scale, typename Rows::Offset offset, Index at, ffi::Result<Tiled> out, ffi::Result<Space> space, float eps) {
  constexpr int planes = kPlanes<Number>;
  const int64_t terms = stream.dimensions().back();
  auto shape = shape_of(stream.element_count() / terms, count, Rows::stacked(weight, scale, terms), terms, at);
  if (shape.has_error()) return shape.error();
  auto left = operand<Number>(*shape, *space);
  if (left.has_error()) return left.error();
  const int64_t results = shape->results / 2;
  if (results % kDepth) return ffi::Error::InvalidArgument("a gated product's results must be a multiple of 32");
  auto activation = operand<Number>(Shape{shape->tokens, results}, *out);
  if (activation.has_error()) return activation.error();
  const Operand<planes> to = *activation;
  enter_normed(pool, *shape, stream.typed_data(), numbers<Number>(norm) + shape->layer * terms, eps, *left);
  const Rows rows(weight, scale, offset, shape->layer, shape->results, terms);
  multiply<Number>(pool, *shape, *left, rows, 0, left->steps, gate_beside_up(results),
                   [=](const float* sums, int64_t token, int64_t pair, int64_t first, int64_t end) {
                     for (int64_t row = first; row < end; ++row)
                       put<planes>(gated<planes>(load(sums + row * kSide)), to.line(token + row, pair / 2) + pair % 2 * 32,
                                   to.kPlaneBytes);
                   },
                   [=](int64_t token, int64_t pair) {
                     for (int plane = 0; plane < planes && pair % 2 == 0; ++plane)
                       fetch_to_write(to.line(token, pair / 2) + plane * to.kPlaneBytes);
                   });
  return ffi::Error::Success();
}

}  // namespace onepass

#define ONEPASS_AMX_PRODUCTS(name, Number, Rows)                                                                    \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_amx_qkv_##name, (onepass::qkv<Number, Rows>),                               \
                                xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().Arg<Wide>().Arg<Index>()          \
                                    .Arg<Numbers<Number>>().Arg<Rows::Buffer>().Arg<Rows::Scale>().Arg<Rows::Offset>()         \
                                    .Arg<Index>().Arg<Wide>().Arg<Wide>().Arg<Wide>().Arg<Wide>().Arg<Wide>()       \
                                    .Ret<Numbers<Number>>().Ret<Numbers<Number>>().Ret<Numbers<Number>>()           \
                                    .Ret<Space>().Attr<float>("eps"));                                              \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_amx_add_##name, (onepass::add<Number, Rows>),                               \
                                xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().Arg<Numbers<Number>>().Arg<Index>() \
                                    .Arg<Rows::Buffer>().Arg<Rows::Scale>().Arg<Rows::Offset>().Arg<Index>().Arg<Wide>()       \
                                    .Arg<Wide>().Ret<Wide>().Ret<Space>());                                         \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_amx_add_tiled_##name, (onepass::add_tiled<Number, Rows>),                   \
                                xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().Arg<Tiled>().Arg<Index>()         \
                                    .Arg<Rows::Buffer>().Arg<Rows::Scale>().Arg<Rows::Offset>().Arg<Index>().Arg<Wide>()       \
                                    .Arg<Wide>().Ret<Wide>());                                                      \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_amx_gate_up_##name, (onepass::gate_up<Number, Rows>),                       \
                                xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().Arg<Wide>().Arg<Index>()          \
                                    .Arg<Numbers<Number>>().Arg<Rows::Buffer>().Arg<Rows::Scale>().Arg<Rows::Offset>()         \
                                    .Arg<Index>().Ret<Tiled>().Ret<Space>().Attr<float>("eps"))
