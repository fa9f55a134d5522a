"""Chooses the backend of a model on a device: the decided config, the attention, and the operations of a layer.

Chosen once, when a model is loaded, from the rows of `backends`. Where the C++ of a backend cannot be built, the next
one in the table takes its place, and the log says why; where it was asked for by name, that is an error.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from onepass.attention.base import Attention
from onepass.attention.mask import plain_causal
from onepass.attention.reference import Reference
from onepass.engine.backends import BACKENDS, Backend, Conditions, KernelTarget, backend_named, kernel_problems
from onepass.engine.config import Device, EngineConfig, Kernel
from onepass.errors import ConfigError
from onepass.kernels.cpu import build as native
from onepass.kernels.cpu import libraries
from onepass.kernels.cpu.attention import DTYPES
from onepass.kernels.cpu.int8_dot import bf16_products, int8_dot
from onepass.kernels.cpu.libraries import Library
from onepass.models.config import ModelConfig
from onepass.models.int8 import takes_coarse
from onepass.models.layer_ops import LayerOps
from onepass.models.weights import Layers

log = logging.getLogger("onepass")
NARROW = {"half": "in half precision", "short": "in integers of 16 bits"}


@dataclass(frozen=True)
class Kernels:
    """`problems` says of every backend why it cannot be used here, or None of those that could be; `code` which C++ the
    others need for this model."""

    config: EngineConfig
    attention: Attention
    ops: LayerOps
    problems: dict[Kernel, str | None]
    code: dict[Kernel, tuple[Library, ...]]

    def __str__(self) -> str:
        others = "; ".join(f"no {name}: {why}" for name, why in self.problems.items() if why and name in ("amx", "cpu"))
        products = (
            f"; {self.int8_products}" if self.config.quantize == "int8" or self.config.quantize_activations else ""
        )
        return f"attention {self.attention.name}{products}" + (
            f" ({others})" if self.config.attention == "xla" and others else ""
        )

    def report(self, shard: ModelConfig, layers: Layers) -> list[dict[str, Any]]:
        """Every row of the table, ready for JSON: whether it is used, why it cannot be, whether its C++ is prebuilt or
        built on this machine, how weights in bfloat16 and in int8 are multiplied, and which operations of a layer the
        used one leaves to XLA. `layers` are weights or their shapes, over any number of devices."""
        layers = jax.tree.map(_on_one_device, layers)
        return [
            {
                "name": backend.name,
                "runs_on": backend.runs_on,
                "provides": backend.provides,
                "state": self._state(backend),
                "problem": self.problems[backend.name],
                "code": self._code(backend),
                "bf16_products": bf16_products() if backend.name == self.config.attention == "cpu" else None,
                "int8_products": self.int8_products
                if backend.name == self.config.attention in ("amx", "cpu")
                else None,
                "left_to_xla": self.ops.left_to_xla(shard, layers) if self._state(backend) == "used" else {},
            }
            for backend in BACKENDS
        ]

    def _state(self, backend: Backend) -> str:
        if backend.name == self.config.attention:
            return "used"
        return "available" if self.problems[backend.name] is None else "unavailable"

    @property
    def int8_products(self) -> str:
        """How weights in 8 bits are multiplied, or would be."""
        if self.config.attention == "amx":
            if self.config.quantize_activations or self.config.quantize is None:
                return "8-bit weights times activations of 8 bits, by amx-int8; those of qkv widened"
            return "8-bit weights widened to the network's numbers"
        dot = int8_dot()
        if self.config.quantize_activations or (self.config.quantize is None and dot.default):
            narrow: str | None = getattr(self.attention, "narrow", None)
            attention = f"; float32 attention {NARROW[narrow]}" if narrow else ""
            bits = dot.activation_bits if self.config.quantize == "gguf" or dot.scales == "fine" else 8
            return f"8-bit weights times activations of {bits} bits, by {dot.name}{attention}"
        return "8-bit weights widened to float32"

    def _code(self, backend: Backend) -> str | None:
        code = self.code.get(backend.name)
        return native.describe_code(code) if code else None


def for_device(
    config: EngineConfig, device: Device, sixteen_bit: bool, head_dim: int, weight_bytes: int = 0
) -> EngineConfig:
    """The config with every "decide for me" decided, for weights of so many bytes on each device."""
    fast = device.platform != "cpu"
    memory = config.memory_bytes or device.memory_bytes
    problems = kernel_problems(
        Conditions(device, sixteen_bit, head_dim, config.tp or 1, config.quantize, config.quantize_activations)
    )
    if config.attention is not None and (problem := problems[config.attention]) is not None:
        raise ConfigError(f"attention={config.attention!r} cannot be used here: {problem}")
    attention = config.attention or _last_usable(problems)
    return replace(
        config,
        # On a CPU others wait for a step that takes long; but our own products read all weights once per step.
        max_batch_tokens=config.max_batch_tokens or (16384 if fast else 2048 if attention == "amx" else 1024),
        # On an accelerator the host packs the next step meanwhile. A CPU has the same cores for both, and a small
        # request would only wait for one more step.
        steps_in_flight=config.steps_in_flight or (2 if fast else 1),
        memory_bytes=memory,
        cache_bytes=_default_cache(memory, weight_bytes, fast) if config.cache_bytes is None else config.cache_bytes,
        attention=attention,
        quantize_activations=quantized_activations(config, attention),
        tp=config.tp or 1,
        dp=config.dp or 1,
    )


def quantized_activations(config: EngineConfig, attention: Kernel) -> bool:
    """Whether activations are quantized, so that weights in 8 bits are multiplied as integers. By default where weights
    are in int8 and the CPU has the instructions; GGUF's blocks keep the scores of the widened file unless it is asked
    for."""
    can = (attention, config.quantize) in (("amx", "int8"), ("cpu", "int8"), ("cpu", "gguf"))
    if config.quantize_activations and not can:
        raise ConfigError(
            "quantize_activations needs weights in int8 or in GGUF's blocks and our own code for CPUs; "
            f"got quantize={config.quantize!r} and attention={attention!r}"
        )
    if config.quantize_activations is not None:
        return config.quantize_activations
    return can and config.quantize == "int8" and (attention == "amx" or int8_dot().default)


def kernels_for(
    wanted: EngineConfig, device: Device, share: ModelConfig, dtype: Any, eight_bit: bool = False, build: bool = True
) -> Kernels:
    """`share` is one device's part of the model; `eight_bit`: its layers' weights are quantized. Without `build` our
    C++ is taken to be buildable."""
    sixteen_bit = jnp.dtype(dtype).itemsize == 2
    weight_bytes = share.num_parameters * (1 if eight_bit else jnp.dtype(dtype).itemsize)
    decided = for_device(wanted, device, sixteen_bit, share.head_dim, weight_bytes)
    problems = kernel_problems(
        Conditions(device, sixteen_bit, share.head_dim, decided.tp or 1, wanted.quantize, wanted.quantize_activations)
    )
    name = wanted.attention or _last_usable(problems)

    def target_of(name: Kernel) -> KernelTarget:
        integers = quantized_activations(wanted, name) and (name != "amx" or takes_coarse(share))
        dtypes = (DTYPES[kind],) if (kind := jnp.dtype(dtype)) in DTYPES else libraries.DTYPES
        return KernelTarget(device, share, eight_bit, wanted.quantize, integers, dtypes)

    while build and (problem := _build_problem(backend_named(name), target_of(name))) is not None:
        if wanted.attention == name:
            raise ConfigError(f"attention={name!r} cannot be used here: {problem}")
        log.warning("attention %s was not built: %s", name, problem)
        problems[name] = problem
        name = _last_usable(problems)
    target = target_of(name)
    decided = replace(decided, attention=name, quantize_activations=target.integer_products)
    attention, ops = backend_named(name).create(target)
    if decided.mask == "dense":
        attention = Reference(block_bytes=None, name="dense", page=attention.page)
    code = {b.name: b.code(target_of(b.name)) for b in BACKENDS if b.code and problems[b.name] is None}
    return Kernels(decided, attention, ops, problems, code)


def without_isolation(page: int) -> Attention:
    """Attention with a plain causal mask over the whole step: what an isolation check must catch."""
    return Reference(rule=plain_causal, name="plain-causal", page=page)


def _on_one_device(weight: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(weight, "sharding", None)
    return jax.ShapeDtypeStruct(sharding.shard_shape(weight.shape) if sharding else weight.shape, weight.dtype)


def _last_usable(problems: dict[Kernel, str | None]) -> Kernel:
    return next(name for name in reversed(problems) if problems[name] is None)


def _build_problem(backend: Backend, target: KernelTarget) -> str | None:
    code = backend.code(target) if backend.code else ()
    try:
        native.load(*code)
    except native.NotBuilt as why:
        return str(why)
    # Scales are made for the instructions that the CPU has: with others sums of 16 bits might saturate.
    wanted = int8_dot().name
    for library in code:
        if library in libraries.INT8_DOTS and (name := native.int8_dot_name(library)) != wanted:
            return f"its C++ multiplies 8-bit integers by {name}, not by {wanted}"
    return None


def _default_cache(memory: int, weight_bytes: int, accelerator: bool) -> int:
    """A quarter of a device, and no more than a third of what the weights leave free; a CPU's memory is everybody's.
    Rounded, for the pool's size is part of every program, and what a device says of its memory may differ a little from
    one start to the next."""
    if not accelerator:
        return min(memory // 8, 1 << 30)
    unit = 1 << 30 if memory >= 16 << 30 else 1 << 26
    return max(0, min(memory // 4, (memory - weight_bytes) // 3)) // unit * unit
