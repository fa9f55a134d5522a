// The pool of pages, empty: zeros that cost no memory and no time before they are written.
//
// XLA would write every byte of it, 1.5 GB on an ordinary machine, of which a short request uses a few MB. The kernel is
// told instead that what lies in the buffer is not needed: each page then comes back as zeros when it is first touched.

#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "common/numbers.h"
#include "xla/ffi/api/ffi.h"

namespace onepass {

inline void zero(char* begin, int64_t size) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const int64_t before = (page - address % page) % page, whole = (size - before) / page * page;
  if (size <= before + page || madvise(begin + before, whole, MADV_DONTNEED) != 0) {  // such as memory that is locked
    std::memset(begin, 0, size);
    return;
  }
  std::memset(begin, 0, before);
  std::memset(begin + before + whole, 0, size - before - whole);
}

template <typename Number>
xla::ffi::Error zeros(xla::ffi::Result<Numbers<Number>> k, xla::ffi::Result<Numbers<Number>> v) {
  zero(static_cast<char*>(k->untyped_data()), k->size_bytes());
  zero(static_cast<char*>(v->untyped_data()), v->size_bytes());
  return xla::ffi::Error::Success();
}

}  // namespace onepass
