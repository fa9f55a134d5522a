// The products of `cpu_products.h` for 32-bit weights: a file of its own, so that they are compiled side by side.

#include "products/cpu_products.h"

ONEPASS_PRODUCTS(f32, float, float);
ONEPASS_VOCABULARY(f32, float, float);
