"""Which instructions of a CPU multiply 8-bit integers, and whether weights in int8 are multiplied so by default; which
multiply numbers of 16 bits.

The rows are the variants of `csrc/products/int8_dot.h`, in its order; the compiler picks one of them for the CPU that a
library is built for. Who decides by them is `engine.kernels`; what was measured is in docs/log.md.
"""

from collections.abc import Set
from dataclasses import dataclass

from onepass.kernels.cpu.attention import Narrow
from onepass.kernels.cpu.instruction_sets import cpu_features
from onepass.kernels.cpu.libraries import HALF_FEATURES, SHORT_FEATURES
from onepass.models.int8 import Int8Scales


@dataclass(frozen=True)
class Int8Dot:
    """`name` is kDotName of int8_dot.h; `features` are by Linux's names, `lacks` those that bring another variant.
    `scales`: of the weights in int8 that are multiplied so. `activation_bits`: of activations for weights whose scales
    are fine, as a file's blocks have them; others are made for 8. `default`: whether activations are quantized for
    weights in int8 unless that is refused, which needs products that are faster than float32's. `qkv_bits`: of the
    activations of `qkv` where scales are fine, which 8 bits would harm most; 32 are float32."""

    name: str
    features: tuple[str, ...]
    lacks: tuple[str, ...]
    activation_bits: int
    default: bool
    qkv_bits: int = 32
    scales: Int8Scales = "fine"


INT8_DOTS = (
    Int8Dot("avx512-vnni", ("avx512f", "avx512_vnni"), (), 8, True, qkv_bits=11, scales="medium"),
    Int8Dot("avx-vnni", ("avx2", "avx_vnni"), ("avx512f",), 8, True, qkv_bits=11),
    Int8Dot("avx512bw", ("avx512f", "avx512bw"), (), 7, True, scales="paired"),
    Int8Dot("avx2", ("avx2",), ("avx512f",), 7, True, scales="paired"),
    Int8Dot("neon-i8mm", ("asimddp", "i8mm"), (), 8, True, qkv_bits=11),
    Int8Dot("neon-dotprod", ("asimddp",), (), 8, True, qkv_bits=11),
    Int8Dot("plain", (), (), 8, False),
)


def int8_dot(features: Set[str] | None = None) -> Int8Dot:
    """The variant for a CPU with these features; None: for the CPU of this machine."""
    has = cpu_features() if features is None else features
    return next(row for row in INT8_DOTS if has >= set(row.features) and not has & set(row.lacks))


def narrow_attention(features: Set[str] | None = None) -> Narrow | None:
    """Which numbers of 16 bits attention has where activations are quantized: half precision, with errors near 1e-3, or
    integers, near 3e-4, on CPUs with that arithmetic. Errors of 8-bit activations are several times as large."""
    has = cpu_features() if features is None else features
    return "half" if has >= set(HALF_FEATURES) else "short" if has >= set(SHORT_FEATURES) else None


def bf16_products(features: Set[str] | None = None) -> str:
    """How the general kernels multiply weights in bfloat16; the name is kBf16Name of `csrc/products/bf16_pairs.h`."""
    has = cpu_features() if features is None else features
    return "activations rounded to bf16, by neon-bf16" if has >= {"asimd", "bf16"} else "widened to float32"
