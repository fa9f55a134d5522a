// The products of `cpu_products.h` of 8-bit weights and 8-bit activations, in a network of 16 bits; with them the name of
// the instructions that multiply.

#define ONEPASS_INTEGER_PRODUCTS
#include "products/cpu_products.h"

ONEPASS_PRODUCTS(int8_dot_bf16, bf16, int8_t);

extern "C" const char* onepass_int8_dot_name() { return onepass::kDotName; }
