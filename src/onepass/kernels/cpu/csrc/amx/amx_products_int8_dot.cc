// A layer's products of weights and activations in 8 bits (int8_blocks.h). The product before attention is none of them:
// 8 bits would harm its results most, so its weights are widened (amx_products_int8.cc).
//
// Weights have a scale of 64 terms, or of up to nine times as many, and no offset; tokens have the same blocks.

#include <limits>

#include "amx/amx_products.h"
#include "amx/int8_blocks.h"

namespace onepass {
namespace {

// Weights of one layer.
struct Int8Weight {
  const int8_t* first;
  const float* scale;
  int64_t terms, blocks;

  int64_t steps() const { return terms / kInt8Depth / blocks; }  // that have a scale in common
  int64_t pair_bytes(int64_t count) const { return count * (steps() * 2 * kTileBytes + kSide * 4); }

  // So many blocks of a pair, from `start` on: the first half's tiles, the second's, and scales of 32 rows for each block.
  template <typename Order>
  void pack(Order order, int64_t pair, int64_t start, int64_t count, char* to) const {
    float* scales = reinterpret_cast<float*>(to + count * steps() * 2 * kTileBytes);
    for (int half = 0; half < 2; ++half) {
      const int64_t row = order(pair, half);
      if (count == blocks) fetch_rows(first + row * terms, terms);
      for (int64_t step = 0; step < count * steps(); ++step, to += kTileBytes)
        transposed_tile(first + row * terms + (start * steps() + step) * kInt8Depth, terms, to);
      for (int64_t block = 0; block < count; ++block)
        for (int i = 0; i < kRows; ++i)
          scales[block * kSide + half * kRows + i] = scale[(row + i) * blocks + start + block];
    }
  }
};

ffi::ErrorOr<Int8Weight> weight_of(const Shape& shape, const Bytes& weight, const Scales& scale, const Scales& offset) {
  const int64_t layers = weight.dimensions().front(), blocks = scale.dimensions().back();
  const bool even = blocks && shape.terms % (blocks * kInt8Depth) == 0;
  if (!even || shape.terms / blocks > kMaxBlockSteps * kInt8Depth || offset.element_count() ||
      static_cast<int64_t>(scale.element_count()) != layers * shape.results * blocks)
    return ffi::Error::InvalidArgument("weights must have a scale of 64 terms or up to nine times as many, and no offset");
  return Int8Weight{weight.typed_data() + shape.layer * shape.results * shape.terms,
                    scale.typed_data() + shape.layer * shape.results * blocks, shape.terms, blocks};
}

// Memory for tokens in tiles, begun at a whole line; an error where it is too little.
ffi::ErrorOr<QuantizedTokens> tokens_in(const Space& memory, int64_t tokens, int64_t terms, int64_t blocks) {
  const auto at = reinterpret_cast<uintptr_t>(memory.untyped_data()), start = (at + 63) / 64 * 64;
  if (start + QuantizedTokens::bytes(tokens, terms, blocks) > at + memory.size_bytes())
    return ffi::Error::InvalidArgument("too little memory for tokens in tiles");
  return QuantizedTokens(reinterpret_cast<char*>(start), tokens, terms, blocks);
}

// Calls body with the steps of a block as a constant where there are as many as in most models, else with 0.
template <typename Body>
void with_steps(int64_t steps, Body body) {
  if (steps == 3) body(std::integral_constant<int, 3>());
  else if (steps == 8) body(std::integral_constant<int, 8>());
  else if (steps == 9) body(std::integral_constant<int, 9>());
  else body(std::integral_constant<int, 0>());
}

template <typename Number>
void enter(ffi::ThreadPool& pool, const Shape& shape, const Number* x, QuantizedTokens to) {
  in_parallel(pool, (shape.tokens + kSide - 1) / kSide, [&](int64_t line) {
    const int64_t end = std::min(shape.tokens, (line + 1) * kSide), size = shape.terms / to.blocks;
    in_twos(line * kSide, end, [&]<int count>(int64_t token, std::integral_constant<int, count>) {
      for (int64_t block = 0; block < to.blocks; ++block) {
        to.fetch(token + 2, block);
        quantize_block<count, true>(
            to, token, block,
            [&, from = x + token * shape.terms + block * size](int n, int64_t i) {
              return load(from + n * shape.terms + i * 32);
            },
            [](int) { return 1.0f; });
      }
    });
  });
}

template <typename Number>
void enter_normed(ffi::ThreadPool& pool, const Shape& shape, const float* stream, const Number* norm, float eps,
                  QuantizedTokens to) {
  in_parallel(pool, (shape.tokens + kSide - 1) / kSide, [&](int64_t line) {
    const int64_t end = std::min(shape.tokens, (line + 1) * kSide), size = shape.terms / to.blocks;
    in_twos(line * kSide, end, [&]<int count>(int64_t token, std::integral_constant<int, count>) {
      const float* x = stream + token * shape.terms;
      float by[count];
      for (int n = 0; n < count; ++n) {
        by[n] = one_by_root(x + n * shape.terms, shape.terms, eps);
        if (by[n] == 0) by[n] = std::numeric_limits<float>::quiet_NaN();  // squares, too, must be finite
      }
      for (int64_t block = 0; block < to.blocks; ++block) {
        to.fetch(token + 2, block);
        quantize_block<count, false>(
            to, token, block,
            [&, from = x + block * size, norm = norm + block * size](int n, int64_t i) {
              return load(from + n * shape.terms + i * 32) * load(norm + i * 32);
            },
            [&](int n) { return by[n]; });
      }
    });
  });
}

// Results of so many blocks from `start` on, finished by finish(own), where `own` are `own_bytes` of the thread's. A thread
// has groups of `group` pairs one after another.
template <typename Order, typename Finish>
void multiply(ffi::ThreadPool& pool, const Shape& shape, const QuantizedTokens& left, const Int8Weight& weight,
              int64_t start, int64_t count, Order order, int64_t group, int64_t own_bytes, Finish finish) {
  with_steps(weight.steps(), [&]<int known>(std::integral_constant<int, known>) {
    const int64_t steps = weight.steps();
    const int64_t pair_bytes = weight.pair_bytes(count), second = count * steps * kTileBytes;
    auto pack = [&](int64_t pair, char* to) { weight.pack(order, pair, start, count, to); };
    auto work = [&](int64_t first, int64_t end, const char* packed, int64_t token, int64_t last, char* own) {
      Int8Pipeline<known, decltype(finish(own))> pipeline(own + own_bytes, static_cast<int>(steps), left.scale(token, 0),
                                                          finish(own));
      const char* begin = left.block(token);
      for (; token < last; token += kSide) {
        const char* x = left.block(token) + start * steps * 2 * kTileBytes;
        const int rows = static_cast<int>(std::min<int64_t>(kSide, shape.tokens - token));
        if (token + kSide < shape.tokens) {
          const char* next = left.block(token + kSide) + start * steps * 2 * kTileBytes;
          pipeline.expect({next, next + count * steps * 2 * kTileBytes});
        }
        for (int64_t pair = first, place = 0; pair < end; ++pair, place = place + 1 < group ? place + 1 : 0) {
          const char* right = packed + (pair - first) * pair_bytes;
          const float* scale = reinterpret_cast<const float*>(right + 2 * second);
          for (int64_t block = 0; block < count; ++block)
            pipeline.multiply(x + block * steps * 2 * kTileBytes, right + block * steps * kTileBytes, second,
                              {left.scale(token, start + block), scale + block * kSide, block == 0, block + 1 == count,
                               {token, pair, place, rows}});
        }
      }
      pipeline.end(begin, packed, second);
    };
    in_weight_parts(pool, shape.results / kSide, group, pair_bytes, own_bytes + 3 * kSide * kSide * 4, shape.tokens, pack,
                    work);
  });
}

// Adds results to a residual stream, and a bias where there is one.
struct Adding {
  const float *bias, *from;
  float* to;
  int64_t results;  // of a token

  auto rows(const Int8Block& block, const Int8Block& next) const {
    const Int8Results& at = block.results;
    const int64_t place = place_of(at), stride = results;
    return [bias = bias ? load(bias + at.pair * kSide) : both(0), from = from + place, to = to + place, stride,
            later = place_of(next.results) - place, rows = at.rows](int row, Pair sums) {
      if (row >= rows) return;
      fetch_to_write(to + row * stride + later);
      fetch_to_write(to + row * stride + later + 16);
      store(to + row * stride, sums + bias + load(from + row * stride));
    };
  }
  int64_t place_of(const Int8Results& at) const { return at.token * results + at.pair * kSide; }
  void end(const Int8Block&) const {}
  void between() const {}
  void flush() const {}
};

// The blocks in so many at a time that eight pairs of weight tiles fit; sums meet in memory.
ffi::Error add_products(ffi::ThreadPool& pool, const Shape& shape, const QuantizedTokens& left, const Int8Weight& weight,
                        const Wide& bias, const Wide& stream, float* to) {
  keep_padding(shape, stream, to);
  const int64_t most = std::max<int64_t>(1, kPartBytes / 8 / weight.pair_bytes(1));
  const int64_t parts = (left.blocks + most - 1) / most, each = (left.blocks + parts - 1) / parts;
  for (int64_t start = 0; start < left.blocks; start += each) {
    const Adding adding{start ? nullptr : none_or(bias, shape), start ? to : stream.typed_data(), to, shape.results};
    multiply(pool, shape, left, weight, start, std::min(each, left.blocks - start), in_order(), 1, 0,
             [=](char*) { return adding; });
  }
  return ffi::Error::Success();
}

// float32 results, added to a residual stream of float32.
template <typename Number>
ffi::Error add_int8(ffi::ThreadPool pool, Numbers<Number> x, Index count, Bytes weight, Scales scale, Scales offset,
                    Index at, Wide bias, Wide residual, ffi::Result<Wide> out, ffi::Result<Space> space) {
  const int64_t terms = x.dimensions().back();
  auto shape = shape_of(x.element_count() / terms, count, stacked_rows(weight, terms), terms, at);
  if (shape.has_error()) return shape.error();
  auto rows = weight_of(*shape, weight, scale, offset);
  if (rows.has_error()) return rows.error();
  auto left = tokens_in(*space, shape->tokens, terms, rows->blocks);
  if (left.has_error()) return left.error();
  enter(pool, *shape, numbers<Number>(x), *left);
  return add_products(pool, *shape, *left, *rows, bias, residual, out->typed_data());
}

// The same of tokens that are in tiles already, as `gate_up_int8` leaves them.
ffi::Error add_tiled_int8(ffi::ThreadPool pool, Space x, Index count, Bytes weight, Scales scale, Scales offset, Index at,
                          Wide bias, Wide residual, ffi::Result<Wide> out) {
  const int64_t results = residual.dimensions().back(), terms = weight.dimensions().back();
  auto shape = shape_of(residual.element_count() / results, count, stacked_rows(weight, terms), terms, at);
  if (shape.has_error()) return shape.error();
  auto rows = weight_of(*shape, weight, scale, offset);
  if (rows.has_error()) return rows.error();
  auto left = tokens_in(x, shape->tokens, terms, rows->blocks);
  if (left.has_error()) return left.error();
  return add_products(pool, *shape, *left, *rows, bias, residual, out->typed_data());
}

// silu(gate) · up in 8 bits. A thread has all the results of a block one after another, in lines of float32, and quantises
// them while the next block's are multiplied: two rows of them after so many steps.
class Gating {
 public:
  static int64_t bytes(int64_t size) { return 2 * kSide * size * 4; }

  // `size` are the results of a block, which `group` pairs have; `steps` those of a pair's product; `lines` are so many bytes.
  Gating(QuantizedTokens to, char* lines, int64_t size, int64_t group, int64_t steps)
      : to_(to), lines_(reinterpret_cast<float*>(lines)), before_(lines_ + kSide * size), size_(size), group_(group),
        steps_(group * steps) {}

  auto rows(const Int8Block& block, const Int8Block& next) {
    expect(next);
    return [line = line_of(block), size = size_](int row, Pair sums) {
      const __m512 power = _mm512_mul_ps(sums.low, _mm512_set1_ps(-kLog2E));
      _mm512_store_ps(line + row * size, _mm512_mul_ps(_mm512_mul_ps(sums.low, sums.high), sigmoid(power)));
    };
  }
  // Of the only block's sums, as they leave the tiles: the token's scale, squared, is left to the numbers' own. The gate is
  // at once the power's, and up makes good for it.
  auto rows_of_integers(const Int8Block& block, const Int8Block& next) {
    expect(next);
    const __m512 to_power = _mm512_mul_ps(_mm512_loadu_ps(block.scale), _mm512_set1_ps(-kLog2E));
    const __m512 back = _mm512_mul_ps(_mm512_loadu_ps(block.scale + kRows), _mm512_set1_ps(-1 / kLog2E));
    return [line = line_of(block), size = size_, to_power, back, x_scale = block.x_scale](int row, Pair sums) {
      const __m512 gate = _mm512_mul_ps(sums.low, to_power), up = _mm512_mul_ps(sums.high, back);
      const __m512 power = _mm512_mul_ps(gate, _mm512_set1_ps(x_scale[row]));
      _mm512_store_ps(line + row * size, _mm512_mul_ps(_mm512_mul_ps(gate, up), sigmoid(power)));
    };
  }
  void end(const Int8Block& block) {
    if (block.results.place < group_ - 1) return;
    flush();
    std::swap(lines_, before_);
    x_scale_ = block.first ? block.x_scale : nullptr;
    at_ = block.results, row_ = 0, due_ = 0;
  }
  void between() {
    if (expected_ < expected_end_) {
      fetch_to_write(expected_);
      expected_ += 64;
    }
    due_ += kSide;
    if (due_ >= 2 * steps_) {
      due_ -= 2 * steps_;
      quantize(std::min(row_ + 2, at_.rows));
    }
  }
  void flush() { quantize(at_.rows); }

 private:
  // Where a block's results will go, and are asked for while they are computed.
  void expect(const Int8Block& block) {
    const Int8Results& at = block.results;
    if (at.place || !at.rows) return;
    const int64_t steps = to_.steps / to_.blocks;
    expected_ = reinterpret_cast<const char*>(to_.line(at.token, at.pair / group_ * steps));
    expected_end_ = expected_ + steps * 2 * kTileBytes;
  }
  float* line_of(const Int8Block& block) const { return lines_ + block.results.place * kRows; }
  // 1 / (1 + 2^power), right to 2e-4: what it multiplies is cut to 8 bits.
  static __m512 sigmoid(__m512 power) {
    return _mm512_rcp14_ps(_mm512_add_ps(_mm512_set1_ps(1.0f), rough_power_of_two<3>(power)));
  }
  __attribute__((noinline)) void quantize(int end) {
    if (x_scale_) quantize<false>(end, [x_scale = x_scale_](int64_t row) { return x_scale[row] * x_scale[row]; });
    else quantize<true>(end, [](int64_t) { return 1.0f; });
  }
  template <bool keeps, typename Factor>
  __attribute__((always_inline)) void quantize(int end, Factor factor) {
    in_twos(row_, end, [&]<int count>(int64_t row, std::integral_constant<int, count>) {
      quantize_block<count, keeps>(
          to_, at_.token + row, at_.pair / group_,
          [&, line = before_ + row * size_](int n, int64_t i) { return load(line + n * size_ + i * 32); },
          [&](int n) { return factor(row + n); });
    });
    row_ = end;
  }

  QuantizedTokens to_;
  float *lines_, *before_;
  int64_t size_, group_, steps_, due_ = 0;  // steps_: while which a block's rows are quantised
  int row_ = 0;
  const char *expected_ = nullptr, *expected_end_ = nullptr;
  Int8Results at_;  // whose rows are being quantised
  const float* x_scale_ = nullptr;  // of its tokens, where numbers are still to be multiplied by their squares
};

// That, of a weight whose first half is the gate, with `out_blocks` scales a token.
template <typename Number>
ffi::Error gate_up_int8(ffi::ThreadPool pool, Wide stream, Index count, Numbers<Number> norm, Bytes weight, Scales scale,
                        Scales offset, Index at, ffi::Result<Space> out, ffi::Result<Space> space, float eps,
                        int64_t out_blocks) {
  const int64_t terms = stream.dimensions().back();
  auto shape = shape_of(stream.element_count() / terms, count, stacked_rows(weight, terms), terms, at);
  if (shape.has_error()) return shape.error();
  auto rows = weight_of(*shape, weight, scale, offset);
  if (rows.has_error()) return rows.error();
  auto left = tokens_in(*space, shape->tokens, terms, rows->blocks);
  if (left.has_error()) return left.error();
  const int64_t results = shape->results / 2;
  if (out_blocks < 1 || results % (out_blocks * kInt8Depth) || results / out_blocks > kMaxBlockSteps * kInt8Depth)
    return ffi::Error::InvalidArgument("a gated product's results must come in blocks of 64 or up to nine times as many");
  auto activation = tokens_in(*out, shape->tokens, results, out_blocks);
  if (activation.has_error()) return activation.error();
  const QuantizedTokens to = *activation;
  enter_normed(pool, *shape, stream.typed_data(), numbers<Number>(norm) + shape->layer * terms, eps, *left);
  const int64_t size = results / out_blocks, group = size / kRows;
  const int64_t steps = left->steps;
  multiply(pool, *shape, *left, *rows, 0, left->blocks, gate_beside_up(results), group, Gating::bytes(size),
           [=](char* own) { return Gating(to, own, size, group, steps); });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace onepass

using namespace onepass;
namespace ffi = xla::ffi;

#define ONEPASS_INT8(name, Number)                                                                                   \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_amx_add_int8_dot_##name, add_int8<Number>,                                   \
                                ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Numbers<Number>>().Arg<Index>()          \
                                    .Arg<Bytes>().Arg<Scales>().Arg<Scales>().Arg<Index>().Arg<Wide>().Arg<Wide>()   \
                                    .Ret<Wide>().Ret<Space>());                                                      \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_amx_add_tiled_int8_dot_##name, add_tiled_int8,                               \
                                ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Space>().Arg<Index>().Arg<Bytes>()       \
                                    .Arg<Scales>().Arg<Scales>().Arg<Index>().Arg<Wide>().Arg<Wide>().Ret<Wide>());  \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_amx_gate_up_int8_dot_##name, gate_up_int8<Number>,                           \
                                ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Wide>().Arg<Index>()                     \
                                    .Arg<Numbers<Number>>().Arg<Bytes>().Arg<Scales>().Arg<Scales>().Arg<Index>()    \
                                    .Ret<Space>().Ret<Space>().Attr<float>("eps").Attr<int64_t>("out_blocks"))

ONEPASS_INT8(bf16, bf16);
ONEPASS_INT8(f32, float);
