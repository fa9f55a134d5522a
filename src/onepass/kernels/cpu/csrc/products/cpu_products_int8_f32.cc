// The products of `cpu_products.h` for 8-bit weights in a network of 32 bits: a file of its own, so that they are
// compiled side by side.

#include "products/cpu_products.h"

ONEPASS_PRODUCTS(int8_f32, float, int8_t);
