// Over the rows of an LM head, for each token: log Σ e^logit, the largest logit and the first row that has it, in tiles. No
// logit is kept: of every token and 32 rows there are three numbers, whoever the token's neighbours are.

#pragma once

#include <memory>

#include "amx/amx_products.h"

namespace onepass {

// Of tokens, each with so many groups of 32 rows, and some more that have nothing, to make whole vectors.
struct VocabularyParts {
  int64_t groups;
  std::unique_ptr<float[]> top, sum;  // Σ e^(logit - top)
  std::unique_ptr<int32_t[]> row;

  VocabularyParts(int64_t tokens, int64_t pairs)
      : groups((pairs + 15) / 16 * 16), top(new float[tokens * groups]), sum(new float[tokens * groups]),
        row(new int32_t[tokens * groups]) {
    for (int64_t token = 0; token < tokens; ++token)
      for (int64_t pair = pairs; pair < groups; ++pair)
        top[token * groups + pair] = -std::numeric_limits<float>::infinity(), sum[token * groups + pair] = 0;
  }
};

// e^(x - top); what is no number stays visible, and what is infinitely little is nothing.
inline __m512 exponential(__m512 x, float top) {
  const __m512 by = _mm512_set1_ps(kLog2E);
  return power_of_two(_mm512_max_ps(_mm512_set1_ps(-200.0f), _mm512_mul_ps(_mm512_sub_ps(x, _mm512_set1_ps(top)), by)));
}

inline void reduce(Pair logits, int64_t place, int64_t first, const VocabularyParts& to) {
  const float top = _mm512_reduce_max_ps(_mm512_max_ps(logits.low, logits.high));
  const __m512 most = _mm512_set1_ps(top);
  const uint32_t low = _mm512_cmp_ps_mask(logits.low, most, _CMP_EQ_OQ), high = _mm512_cmp_ps_mask(logits.high, most, _CMP_EQ_OQ);
  to.top[place] = top;
  to.row[place] = static_cast<int32_t>(first + __builtin_ctz(low | high << 16 | 1u << 31));
  to.sum[place] = _mm512_reduce_add_ps(_mm512_add_ps(exponential(logits.low, top), exponential(logits.high, top)));
}

inline void end(const VocabularyParts& parts, int64_t token, float* to) {
  const float *top = parts.top.get() + token * parts.groups, *sum = parts.sum.get() + token * parts.groups;
  int64_t best = 0;
  for (int64_t i = 1; i < parts.groups; ++i)
    if (top[i] > top[best]) best = i;
  __m512 total = _mm512_setzero_ps();
  for (int64_t i = 0; i < parts.groups; i += 16)
    total = _mm512_fmadd_ps(_mm512_loadu_ps(sum + i), exponential(_mm512_loadu_ps(top + i), top[best]), total);
  to[0] = top[best] + std::log(_mm512_reduce_add_ps(total));
  to[1] = top[best];
  to[2] = static_cast<float>(parts.row[token * parts.groups + best]);
}

template <typename Number, typename Rows>
ffi::Error vocabulary(ffi::ThreadPool pool, Numbers<Number> x, Index count, typename Rows::Buffer weight,
                      typename Rows::Scale scale, typename Rows::Offset offset, Index at, Wide bias,
                      ffi::Result<Wide> out, ffi::Result<Space> space) {
  const int64_t terms = x.dimensions().back();
  auto shape = shape_of(x.element_count() / terms, count, Rows::stacked(weight, scale, terms), terms, at);
  if (shape.has_error()) return shape.error();
  auto left = operand<Number>(*shape, *space);
  if (left.has_error()) return left.error();
  enter(pool, *shape, numbers<Number>(x), *left);
  const Rows rows(weight, scale, offset, shape->layer, shape->results, terms);
  const float* added = none_or(bias, *shape);
  const VocabularyParts parts(shape->tokens, shape->results / kSide);
  multiply<Number>(pool, *shape, *left, rows, 0, left->steps, in_order(),
           [&parts, added](const float* sums, int64_t token, int64_t pair, int64_t first, int64_t end) {
             for (int64_t row = first; row < end; ++row)
               reduce(summed(sums + row * kSide, added, pair * kSide), (token + row) * parts.groups + pair, pair * kSide,
                      parts);
           },
           [](int64_t, int64_t) {});
  float* to = out->typed_data();
  std::memset(to + 3 * shape->tokens, 0, out->size_bytes() - 12 * shape->tokens);
  in_parallel(pool, shape->tokens, [&](int64_t token) { end(parts, token, to + 3 * token); });
  return ffi::Error::Success();
}

}  // namespace onepass

#define ONEPASS_AMX_VOCABULARY(name, Number, Rows)                                                                   \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(onepass_amx_vocabulary_##name, (onepass::vocabulary<Number, Rows>),                  \
                                xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().Arg<Numbers<Number>>().Arg<Index>() \
                                    .Arg<Rows::Buffer>().Arg<Rows::Scale>().Arg<Rows::Offset>().Arg<Index>()         \
                                    .Arg<Wide>().Ret<Wide>().Ret<Space>())
