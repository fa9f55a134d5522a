// Scoring attention of a network in float32 whose keys, values and queries are rounded to 16 bits, for CPUs with half
// precision arithmetic: what cpu_attention.cc computes, in half the time, with errors near 1e-3. It is for models whose
// activations are quantised anyway.
//
// Keys and values of the step, and of the pages that it reads, become 16 bits once a call, before any block is begun.
// Memory traffic: keys and values once a call in float32, then once a block in half of that.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "attention/attention_block.h"
#include "attention/half_panels.h"
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

ffi::Error attend(ffi::ThreadPool pool, Wide q, Wide own_k, Wide own_v, Wide pool_k, Wide pool_v, Index layer, Index count,
                  Index asking, Index blocks, Index own, Index entries, ffi::Result<Wide> out) {
  const auto d = q.dimensions(), p = pool_k.dimensions();  // [asking kv_heads group size], [layers pages page kv_heads size]
  if (p[3] != d[1] || p[4] != d[3]) return ffi::Error::InvalidArgument("the pool's heads are not the queries'");
  const int64_t at = layer.typed_data()[0];
  if (at < 0 || at >= p[0]) return ffi::Error::InvalidArgument("there is no such layer");
  const int64_t stride = p[3] * p[4], page = p[2] * stride, before = at * p[1] * page, num_blocks = blocks.dimensions()[1];
  const int64_t tokens = own.dimensions()[1], columns = entries.dimensions()[1];
  const Pages pages = pages_in_order(entries);
  const int64_t num_pages = pages.used.size();
  Half* own_halves = reinterpret_cast<Half*>(workspace<2>(2 * sizeof(Half) * (tokens * stride + num_pages * page)));
  Half *values = own_halves + tokens * stride, *page_keys = values + tokens * stride;
  Half* page_values = page_keys + num_pages * page;
  const Step<float, Half> step{
      q.typed_data(), own_halves, values, page_keys, page_values, out->typed_data(), asking.typed_data(),
      blocks.typed_data(), own.typed_data(), pages.entries.data(), d[0], std::min<int64_t>(d[0], count.typed_data()[0]),
      num_blocks, d[0] / num_blocks, tokens, columns, p[2], d[1], d[2], d[3]};
  if (step.out != step.q) {
    const int64_t real = step.count * d[1] * d[2] * d[3];
    std::memset(step.out + real, 0, (q.element_count() - real) * sizeof(float));
  }
  const int64_t used = (step.count + step.block - 1) / step.block;
  if (!used) return ffi::Error::Success();
  constexpr float by = 1 / HalfPanels::kOutScale;
  const int64_t runs = (tokens + kTile - 1) / kTile;  // of the step's own keys
  in_parallel(pool, num_pages + runs, [&](int64_t task) {
    if (task < num_pages) {
      const int64_t entry = pages.used[task], length = std::min<int64_t>(pages.entries[3 * columns + entry], p[2]);
      const int64_t from = before + entries.typed_data()[entry] * page;
      to_halves(pool_k.typed_data() + from, length, p[3], p[4], 1, p[2], page_keys + task * page);
      to_halves(pool_v.typed_data() + from, length, p[3], p[4], by, p[2], page_values + task * page);
    } else {
      const int64_t first = (task - num_pages) * kTile, length = std::min<int64_t>(kTile, tokens - first);
      to_halves(own_k.typed_data() + first * stride, length, p[3], p[4], 1, tokens, own_halves + first * p[4]);
      to_halves(own_v.typed_data() + first * stride, length, p[3], p[4], by, tokens, values + first * p[4]);
    }
  });
  in_parallel(pool, used * step.kv_heads, [&](int64_t task) {  // the last blocks of a long context are the longest
    Block<float, Half, HalfPanels>(step, task % step.kv_heads, used - 1 - task / step.kv_heads).attend();
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace onepass

using namespace onepass;
namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    onepass_cpu_attend_half_f32, attend,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Wide>().Arg<Wide>().Arg<Wide>().Arg<Wide>().Arg<Wide>().Arg<Index>()
        .Arg<Index>().Arg<Index>().Arg<Index>().Arg<Index>().Arg<Index>().Ret<Wide>());
