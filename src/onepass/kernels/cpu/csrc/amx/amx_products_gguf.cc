// A layer's products and the vocabulary's with weights in the blocks of a quantised GGUF file, widened to the network's
// numbers a part at a time.

#include "amx/amx_products.h"
#include "amx/gguf_rows.h"
#include "amx/vocabulary.h"

using namespace onepass;

ONEPASS_AMX_PRODUCTS(gguf_bf16, bf16, GgufRows<bf16>);
ONEPASS_AMX_PRODUCTS(gguf_f32, float, GgufRows<float>);
ONEPASS_AMX_VOCABULARY(gguf_bf16, bf16, GgufRows<bf16>);
ONEPASS_AMX_VOCABULARY(gguf_f32, float, GgufRows<float>);
