// A layer's products with weights in the network's own numbers.

#include "amx/amx_products.h"

using namespace onepass;

ONEPASS_AMX_PRODUCTS(bf16, bf16, PlainRows<bf16>);
ONEPASS_AMX_PRODUCTS(f32, float, PlainRows<float>);
