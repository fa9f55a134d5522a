"""The table of backends: who computes attention and the matrix products of a layer. One row per backend.

A row names the device it runs on, says why it cannot be used for a given device and model, and creates its attention
and layer operations. Of the rows that apply the last one is used. Choosing is `kernels`; the kernels are in
`onepass.kernels`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from onepass.attention.base import Attention
from onepass.attention.xla import Xla
from onepass.engine.config import HOPPER_HEADS, Device, Kernel, Quantize
from onepass.kernels.cpu import libraries
from onepass.kernels.cpu.int8_dot import narrow_attention
from onepass.models.config import ModelConfig
from onepass.models.layer_ops import LayerOps, XlaInstead, XlaLayerOps
from onepass.models.quantize import EIGHT_BIT
from onepass.parallel.split import WHOLE

CPU_PAGE, PAGE = 64, 128  # tokens per page, where no kernel has its own size


@dataclass(frozen=True)
class Conditions:
    """What decides whether a backend can be used."""

    device: Device
    sixteen_bit: bool
    head_dim: int
    tp: int = 1
    quantize: Quantize | None = None
    quantize_activations: bool | None = None


@dataclass(frozen=True)
class KernelTarget:
    """What a backend is created for: `shard` is one device's part of the model; `eight_bit`: its layers' weights are
    quantized; `integer_products`: activations are quantized for them, too. `dtypes`: of the networks that it is for, by
    the names of `kernels.cpu.libraries`."""

    device: Device
    shard: ModelConfig
    eight_bit: bool = False
    quantize: Quantize | None = None
    integer_products: bool = False
    dtypes: tuple[str, ...] = libraries.DTYPES

    @property
    def weights(self) -> libraries.Weights:
        if self.quantize == "int8":
            return "int8_dot" if self.integer_products else "int8"
        if self.quantize == "gguf":
            return "gguf_dot" if self.integer_products else "gguf"
        return ""

    @property
    def narrow_attention(self) -> Literal["half", "short"] | None:
        """Beside integer products, where keys are small: a bias or a norm of theirs makes some so large that 16 bits
        move scores as far as 8-bit weights do (Qwen2.5-Coder-0.5B: mean drift 0.0027 without, 0.0058 with)."""
        takes = self.integer_products and not (self.shard.qkv_bias or self.shard.qk_norm)
        return narrow_attention() if takes else None


@dataclass(frozen=True)
class Backend:
    """`problem` returns why the backend cannot be used, or None. `code` are the libraries that a model needs of it;
    `kernels.cpu.build` builds and loads them. None: there is nothing to build."""

    name: Kernel
    runs_on: str
    provides: str
    problem: Callable[[Conditions], str | None]
    create: Callable[[KernelTarget], tuple[Attention, LayerOps]]
    code: Callable[[KernelTarget], tuple[libraries.Library, ...]] | None = None


def kernel_problems(conditions: Conditions) -> dict[Kernel, str | None]:
    """Why each backend cannot be used, in the order of the table; None where it can."""
    return {backend.name: backend.problem(conditions) for backend in BACKENDS}


def backend_named(name: Kernel) -> Backend:
    return next(backend for backend in BACKENDS if backend.name == name)


def _cpu_problem(conditions: Conditions) -> str | None:
    return conditions.device.no_cpu


def _amx_problem(conditions: Conditions) -> str | None:
    if conditions.device.no_amx is not None:
        return conditions.device.no_amx
    if conditions.head_dim % 32:
        return f"it needs heads in thirty-twos, and this model's are {conditions.head_dim} wide"
    if conditions.quantize == "gguf" and conditions.quantize_activations:
        return "a GGUF file's blocks times quantized activations are the general kernels' work"
    if conditions.tp > 1:
        return f"it needs a model on one device, and this one is on {conditions.tp}"
    return None


def _hopper_problem(conditions: Conditions) -> str | None:
    bits = 16 if conditions.sixteen_bit else 32
    if not conditions.device.hopper:
        return f"it needs a Hopper GPU; this is {conditions.device.platform}"
    if bits != 16 or conditions.head_dim not in HOPPER_HEADS:
        sizes = " or ".join(map(str, HOPPER_HEADS))
        return f"it needs 16 bits and heads of {sizes}; got {bits} bits and heads of {conditions.head_dim}"
    return None


def _tpu_problem(conditions: Conditions) -> str | None:
    platform = conditions.device.platform
    return None if platform == "tpu" else f"it needs a TPU; this is {platform}"


def _xla(target: KernelTarget) -> tuple[Attention, LayerOps]:
    return Xla(page=CPU_PAGE if target.device.platform == "cpu" else PAGE), XlaLayerOps()


def _cpu(target: KernelTarget) -> tuple[Attention, LayerOps]:
    from onepass.kernels.cpu.attention import CpuAttention
    from onepass.kernels.cpu.line_ops import CpuLayerOps

    ops: LayerOps = CpuLayerOps(integer_products=target.integer_products)
    if target.shard.split != WHOLE:
        ops = XlaInstead("the kernels need a model on one device")
    elif target.eight_bit and target.quantize != "int8":
        ops = XlaInstead("of weights in 8 bits the kernels take int8 only")
    return CpuAttention(target.shard.group, narrow=target.narrow_attention), ops


def _amx(target: KernelTarget) -> tuple[Attention, LayerOps]:
    from onepass.kernels.cpu.attention import AmxAttention
    from onepass.kernels.cpu.layer_ops import AmxLayerOps

    return AmxAttention(), AmxLayerOps(integer_products=target.integer_products)


def _hopper(target: KernelTarget) -> tuple[Attention, LayerOps]:
    from onepass.kernels.hopper.attention import HopperAttention
    from onepass.kernels.hopper.layer_ops import HopperLayerOps

    multiprocessors = target.device.multiprocessors
    narrow = EIGHT_BIT if target.eight_bit else None
    return HopperAttention(multiprocessors, target.shard.group, narrow), HopperLayerOps(multiprocessors)


def _tpu(target: KernelTarget) -> tuple[Attention, LayerOps]:
    from onepass.kernels.tpu.attention import TpuAttention

    return TpuAttention(), XlaLayerOps()


def _cpu_code(target: KernelTarget) -> tuple[libraries.Library, ...]:
    narrow = {"half": (libraries.HALF_ATTENTION,), "short": (libraries.SHORT_ATTENTION,), None: ()}
    return (*libraries.general_code(target.weights, target.dtypes), *narrow[target.narrow_attention])


def _amx_code(target: KernelTarget) -> tuple[libraries.Library, ...]:
    return libraries.amx_code(target.weights)


BACKENDS: tuple[Backend, ...] = (
    Backend("xla", "any device", "attention and matrix products by XLA", lambda _: None, _xla),
    Backend(
        "cpu",
        "x86-64 and ARM64 CPUs under Linux",
        "C++ attention and matrix products",
        _cpu_problem,
        _cpu,
        _cpu_code,
    ),
    Backend(
        "amx",
        "x86-64 CPUs with AMX under Linux",
        "C++ attention and matrix products in tiles",
        _amx_problem,
        _amx,
        _amx_code,
    ),
    Backend("hopper", "NVIDIA Hopper GPUs", "Pallas attention and fused matrix products", _hopper_problem, _hopper),
    Backend("pallas-tpu", "TPUs", "Pallas attention; matrix products by XLA", _tpu_problem, _tpu),
)
