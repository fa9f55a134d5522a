// The products of `cpu_products.h` for 16-bit weights: a file of its own, so that they are compiled side by side; with
// them the name of what is multiplied.

#include "products/cpu_products.h"

ONEPASS_PRODUCTS(bf16, bf16, bf16);
ONEPASS_VOCABULARY(bf16, bf16, bf16);

extern "C" const char* onepass_bf16_products_name() { return onepass::kBf16Name; }
