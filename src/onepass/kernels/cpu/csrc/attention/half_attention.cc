// Attention with keys, values and queries in half precision, for CPUs with that arithmetic: errors are near 1e-3.

#include "attention/half_panels.h"
#include "attention/narrow_attention.h"

ONEPASS_NARROW_ATTENTION(half, HalfPanels);
