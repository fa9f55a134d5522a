// The products of `cpu_products.h` of 8-bit weights and 8-bit activations, in a network of 16 bits: a file of its own, so
// that they are compiled side by side.

#define ONEPASS_INTEGER_PRODUCTS
#include "products/cpu_products.h"

ONEPASS_PRODUCTS(int8_dot_bf16, bf16, int8_t);
