// What a core keeps close.

#pragma once

#include <cstdint>

#include <unistd.h>

namespace onepass {

// The size of a core's second cache; the smallest of today's servers where the system does not say.
inline int64_t second_cache_bytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  static const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return 1 << 19;
}

}  // namespace onepass
