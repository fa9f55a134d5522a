// The products of `cpu_products.h` of weights in GGUF's blocks and 8-bit activations, in a network of 32 bits.

#define ONEPASS_INTEGER_PRODUCTS
#include "products/cpu_products.h"

ONEPASS_PRODUCTS(gguf_dot_f32, float, GgufByte);
