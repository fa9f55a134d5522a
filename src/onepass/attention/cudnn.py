"""cuDNN's fused attention as a partial: normalised output and float32 log-sum-exp. NVIDIA GPUs, 16-bit only.

`jax.nn.dot_product_attention` rounds the log-sum-exp to the output's dtype, and in bfloat16 that is an error of several
per cent in the weights of a merge; so the function beneath it is called, which returns it as computed.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from onepass.attention.base import Keys


def cudnn_partial(
    q: Float[Array, "rows asking kv_heads group head_dim"],
    keys: Keys,
    lengths: Int[Array, " rows"] | None,
    causal: bool,
) -> tuple[Array, Array]:
    """Attention to the first `lengths` keys of each row (all of them if None), or to those not later if `causal`."""
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

    rows, asked, kv_heads, group, head_dim = q.shape
    mask = MaskType.CAUSAL if causal else MaskType.NO_MASK if lengths is None else MaskType.PADDING
    padded = mask is MaskType.PADDING
    out, lse = dot_product_attention(
        q.reshape(rows, asked, kv_heads * group, head_dim),
        keys.k,
        keys.v,
        q_seqlen=jnp.full((rows,), asked, jnp.int32) if padded else None,
        kv_seqlen=jnp.maximum(lengths, 1) if padded and lengths is not None else None,
        scale=head_dim**-0.5,
        mask_type=mask,
        return_residual=True,
    )
    lse = jnp.moveaxis(lse.reshape(rows, kv_heads, group, asked), 3, 1).astype(jnp.float32)
    if lengths is not None:
        lse = jnp.where((lengths > 0)[:, None, None, None], lse, -jnp.inf)
    return out.reshape(q.shape), lse
