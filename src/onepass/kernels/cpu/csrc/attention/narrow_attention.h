// Scoring attention of a network in float32 whose keys, values and queries are rounded to 16 bits: what cpu_attention.cc
// computes, in half the time. It is for models whose activations are quantised anyway. `Panels` says what the numbers are.
//
// Keys and values of the step, and of the pages that it reads, become 16 bits once a call, before any block is begun.
// Memory traffic: keys and values once a call in float32, then once a block in half of that.

#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "attention/attention_block.h"
#include "common/threads.h"
#include "xla/ffi/api/ffi.h"

namespace onepass {
namespace {

namespace ffi = xla::ffi;
using Index = ffi::Buffer<ffi::S32>;
using Wide = ffi::Buffer<ffi::F32>;

// The pages that the step reads lie one after another in what is rounded: `entries` with their new numbers.
struct Pages {
  std::vector<int32_t> entries;
  std::vector<int64_t> used;  // entries
};

Pages pages_in_order(const Index& table) {
  const int64_t columns = table.dimensions()[1];
  Pages pages{{table.typed_data(), table.typed_data() + 4 * columns}, {}};
  for (int64_t entry = 0; entry < columns; ++entry) {
    if (pages.entries[columns + entry] == kPadding) continue;
    pages.entries[entry] = static_cast<int32_t>(pages.used.size());
    pages.used.push_back(entry);
  }
  return pages;
}

template <typename Panels>
ffi::Error attend_narrow(ffi::ThreadPool pool, Wide q, Wide own_k, Wide own_v, Wide pool_k, Wide pool_v, Index layer, Index count,
                  Index asking, Index blocks, Index own, Index entries, ffi::Result<Wide> out) {
  const auto d = q.dimensions(), p = pool_k.dimensions();  // [asking kv_heads group size], [layers pages page kv_heads size]
  if (p[3] != d[1] || p[4] != d[3]) return ffi::Error::InvalidArgument("the pool's heads are not the queries'");
  const int64_t at = layer.typed_data()[0];
  if (at < 0 || at >= p[0]) return ffi::Error::InvalidArgument("there is no such layer");
  const int64_t stride = p[3] * p[4], page = p[2] * stride, before = at * p[1] * page, num_blocks = blocks.dimensions()[1];
  const int64_t tokens = own.dimensions()[1], columns = entries.dimensions()[1];
  const Pages pages = pages_in_order(entries);
  const int64_t num_pages = pages.used.size();
  using Key = typename Panels::Key;
  const int64_t row = Panels::row_numbers(p[4]), own_numbers = tokens * p[3] * row, page_numbers = p[2] * p[3] * row;
  Key* own_keys = reinterpret_cast<Key*>(workspace<2>(2 * sizeof(Key) * (own_numbers + num_pages * page_numbers)));
  Key *own_values = own_keys + own_numbers, *page_keys = own_values + own_numbers;
  Key* page_values = page_keys + num_pages * page_numbers;
  const Step<float, Key> step{
      q.typed_data(), own_keys, own_values, page_keys, page_values, out->typed_data(), asking.typed_data(),
      blocks.typed_data(), own.typed_data(), pages.entries.data(), d[0], std::min<int64_t>(d[0], count.typed_data()[0]),
      num_blocks, d[0] / num_blocks, tokens, columns, p[2], d[1], d[2], d[3]};
  if (step.out != step.q) {
    const int64_t real = step.count * d[1] * d[2] * d[3];
    std::memset(step.out + real, 0, (q.element_count() - real) * sizeof(float));
  }
  const int64_t used = (step.count + step.block - 1) / step.block;
  if (!used) return ffi::Error::Success();
  const int64_t runs = (tokens + kTile - 1) / kTile;  // of the step's own keys
  in_parallel(pool, num_pages + runs, [&](int64_t task) {
    if (task < num_pages) {
      const int64_t entry = pages.used[task], length = std::min<int64_t>(pages.entries[3 * columns + entry], p[2]);
      const int64_t from = before + entries.typed_data()[entry] * page;
      Panels::narrow(pool_k.typed_data() + from, pool_v.typed_data() + from, length, p[3], p[4], p[2],
                     page_keys + task * page_numbers, page_values + task * page_numbers);
    } else {
      const int64_t first = (task - num_pages) * kTile, length = std::min<int64_t>(kTile, tokens - first);
      Panels::narrow(own_k.typed_data() + first * stride, own_v.typed_data() + first * stride, length, p[3], p[4], tokens,
                     own_keys + first * row, own_values + first * row);
    }
  });
  in_parallel(pool, used * step.kv_heads, [&](int64_t task) {  // the last blocks of a long context are the longest
    Block<float, Key, Panels>(step, task % step.kv_heads, used - 1 - task / step.kv_heads).attend();
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace onepass

#define ONEPASS_NARROW_ATTENTION(name, Panels)                                                                       \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                                     \
      onepass_cpu_attend_##name##_f32, onepass::attend_narrow<onepass::Panels>,                                      \
      xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().Arg<onepass::Wide>().Arg<onepass::Wide>().Arg<onepass::Wide>() \
          .Arg<onepass::Wide>().Arg<onepass::Wide>().Arg<onepass::Index>().Arg<onepass::Index>().Arg<onepass::Index>() \
          .Arg<onepass::Index>().Arg<onepass::Index>().Arg<onepass::Index>().Ret<onepass::Wide>())
