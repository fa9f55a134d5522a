// A layer's products with weights in int8, widened to the network's numbers a part at a time.

#include "amx/amx_products.h"

using namespace onepass;

ONEPASS_AMX_PRODUCTS(int8_bf16, bf16, WidenedRows<bf16>);
ONEPASS_AMX_PRODUCTS(int8_f32, float, WidenedRows<float>);
