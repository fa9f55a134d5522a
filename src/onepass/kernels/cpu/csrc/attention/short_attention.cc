// Attention with keys, values and queries as integers of 16 bits, for CPUs with AVX-512's VNNI: errors are near 3e-4.

#include "attention/narrow_attention.h"
#include "attention/short_panels.h"

ONEPASS_NARROW_ATTENTION(short, ShortPanels);
