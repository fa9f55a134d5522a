// The products of `cpu_products.h` for 8-bit weights in a network of 16 bits: a file of its own, so that they are
// compiled side by side.

#include "products/cpu_products.h"

ONEPASS_PRODUCTS(int8_bf16, bf16, int8_t);
