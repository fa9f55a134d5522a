"""Mosaic GPU kernels for Hopper GPUs: attention over the paged pool, and the matrix products of a layer.

    attention          the launch; attention_schedule, _tasks, _copy and _compute are its parts
    pool_write         context keys into their pages
    gemm               copying and multiplying tiles, and late_tiles, what their ends ask for
    qkv, gate_up,      the products, with what follows each
    residual
    layer_ops          a layer's products as the decoder calls them

All stop at the last real token of a step (`count`): what lies beyond the next multiple of `SAFE` tokens is left as the
memory was, and read by nobody.
"""
