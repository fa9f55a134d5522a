// Whether this process may use AMX: the kernel hands the tiles' registers out on request only.

#include <sys/syscall.h>
#include <unistd.h>

extern "C" int onepass_amx_ready() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
