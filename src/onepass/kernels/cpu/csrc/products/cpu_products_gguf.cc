// The products of `cpu_products.h` for weights in GGUF's blocks, in a network of 32 bits; with them what else is read of
// such weights: rows of an embedding, and the rows of an LM head.

#include "products/cpu_products.h"

ONEPASS_PRODUCTS(gguf_f32, float, GgufByte);
ONEPASS_ROWS(gguf_f32, float, GgufByte);
ONEPASS_VOCABULARY(gguf_f32, float, GgufByte);
