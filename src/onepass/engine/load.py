"""A model on its devices, and what was decided for it: dtype, how many devices share it, how many replicas there are.

Reading it is `loading`; what runs on it is `engine`, and `follower` in processes without a caller.
"""

import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp

from onepass.engine.config import EngineConfig, Quantize, describe_device
from onepass.engine.kernels import for_device
from onepass.errors import ConfigError
from onepass.kernels.cpu.build import NotBuilt, amx_problem, cpu_features, cpu_problem, load_amx, load_cpu
from onepass.kernels.cpu.int8_dot import int8_dot
from onepass.kernels.cpu.layer_ops import takes_blocks
from onepass.limits import limit_threads
from onepass.loading.model import Model, open_model
from onepass.loading.source import SourceOptions
from onepass.models.config import ModelConfig
from onepass.models.int8 import BLOCK, Int8Scales, in_int8, takes_coarse
from onepass.models.layout import mesh_of, share_of
from onepass.models.quantize import in_eight_bits
from onepass.models.weights import Weights
from onepass.parallel.meshes import replica_meshes
from onepass.parallel.placement import Machine, Placement, arrange
from onepass.version import VERSION

if TYPE_CHECKING:  # several hosts need what only the server's installation brings
    from onepass.parallel.hosts import Hosts

log = logging.getLogger("onepass")

Dtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class LoadedModel:
    """A model on its devices, and what was decided for it."""

    model: Model
    weights: Weights
    config: EngineConfig
    arrangement: Placement

    def fingerprint(self) -> dict[str, object]:
        """What processes that share the model must agree on."""
        return {
            "onepass": VERSION,
            "jax": jax.__version__,
            "model": str(self.model.config),
            "adapter": str(self.model.adapter),
            "dtype": str(self.weights.embed.dtype),
            "quantize": self.config.quantize,
            "kernels": [self.config.attention, self.config.mask, self.config.max_batch_tokens, self.config.cache_bytes],
            "device": jax.devices()[0].device_kind,
            "arrangement": [self.arrangement.tp, self.arrangement.dp],
        }


def load_model(
    model: str | Model, dtype: Dtype, source: SourceOptions, config: EngineConfig, hosts: "Hosts | None"
) -> LoadedModel:
    """`model` is a name, or what `open_model` has opened already."""
    limit_threads(os.environ)
    chosen = _dtype_name(dtype)
    if hosts is not None:
        hosts.join()
    opened = model if isinstance(model, Model) else open_model(model, source)
    kind = _dtype(chosen)
    arrangement = _arranged(config, opened.config, kind, hosts)
    log.info("%s: %s", opened.name, arrangement)
    tp, dp = arrangement.tp, arrangement.dp
    mesh = None if tp == 1 else replica_meshes(jax.devices(), tp, dp)[0]
    how = chosen_quantization(config, opened, kind, tp * dp)
    if how == "int8":
        check_int8(opened.config, tp * dp)
    weights = opened.load(kind, source.progress, mesh, int8_scales(config, opened.config, kind, how), how == "gguf")
    made = quantized(opened, weights, how) if how == "fp8" else weights
    return LoadedModel(opened, made, replace(config, tp=tp, dp=dp, quantize=how), arrangement)


def chosen_quantization(config: EngineConfig, model: Model, dtype: Any, devices: int) -> Quantize | None:
    """What `quantize` None means for this model on this machine: a quantised GGUF file stays in its own blocks where
    that gives the same weights and is not slower. The result is None where nothing is quantized."""
    if config.quantize not in (None, "gguf"):
        return None if config.quantize == "none" else config.quantize
    problem = gguf_problem(config, model, dtype, devices)
    if config.quantize == "gguf" and problem is not None:
        raise ConfigError(f"quantize='gguf' cannot be used here: {problem}")
    if model.quantised_tensors:
        log.info("%s: %s", model.name, describe_storage(model, dtype, problem))
    return "gguf" if problem is None else None


def describe_storage(model: Model, dtype: Any, problem: str | None) -> str:
    """How the weights of a model lie in memory, and why; `problem` is that of `gguf_problem`."""
    kinds = ", ".join(model.quantised_tensors)
    if not kinds:
        return f"weights in {jnp.dtype(dtype)}"
    if problem is None:
        return f"weights in the file's blocks ({kinds})"
    return f"weights widened from {kinds} to {jnp.dtype(dtype)}: {problem}"


def gguf_problem(config: EngineConfig, model: Model, dtype: Any, devices: int, build: bool = True) -> str | None:
    """Why weights cannot stay in a GGUF file's blocks, or should not unless that is asked for; None where they do.
    Without `build` our C++ is taken to be buildable."""
    platform = jax.default_backend()
    if not model.quantised_tensors:
        return "the model is not a quantised GGUF file"
    if platform != "cpu" or devices != 1:
        return f"it needs one CPU; got {devices} devices of {platform}"
    if config.attention not in (None, "cpu", "amx"):
        return f"it needs attention 'cpu' or 'amx'; got {config.attention!r}"
    tiles = config.attention != "cpu" and not config.quantize_activations and amx_problem() is None
    if tiles and not takes_blocks(model.config):
        return "AMX's kernels need sizes in thirty-twos and an MLP without a bias before its gate"
    if not tiles and jnp.dtype(dtype) != jnp.float32:
        return f"without AMX it needs float32; got {jnp.dtype(dtype)}"
    if (problem := cpu_problem()) is not None:
        return problem
    try:
        if build:
            load_amx("gguf") if tiles else load_cpu("gguf")
    except NotBuilt as why:
        return str(why)
    return None


def quantization_of(weights: Weights) -> Quantize | None:
    """How weights are quantized; None where they are not."""
    if weights.in_gguf_blocks:
        return "gguf"
    if not weights.layers.in_eight_bits:
        return None
    return "int8" if weights.layers.qkv.dtype == jnp.int8 else "fp8"


def quantized(model: Model, weights: Weights, how: Quantize | None, activations: bool | None = None) -> Weights:
    """Weights of `model` that were loaded unquantized, quantized as `Scorer.load` has them, which is told of
    activations: those of a quantised GGUF file are read again, in its own blocks."""
    if how is None or how == "none":
        return weights
    if how == "gguf":
        again = model.reopened()
        if (problem := gguf_problem(EngineConfig(quantize=how), again, weights.embed.dtype, 1)) is not None:
            raise ConfigError(f"quantize='gguf' cannot be used here: {problem}")
        return again.load(weights.embed.dtype, keep_blocks=True)
    dtype, mesh = weights.embed.dtype, mesh_of(weights)
    devices = 1 if mesh is None else mesh.size
    if how == "int8":
        scales = int8_scales(EngineConfig(quantize_activations=activations), model.config, dtype, how) or "fine"
        return model.reopened().load(dtype, int8=scales) if model.quantised_tensors else in_int8(weights, scales)
    if dtype != jnp.bfloat16 or devices != 1:
        raise ConfigError(
            f"quantize={how!r} needs bfloat16 and a model on one device; got {dtype} on {devices} devices"
        )
    return in_eight_bits(weights)


def int8_scales(config: EngineConfig, model: ModelConfig, dtype: Any, how: Quantize | None) -> Int8Scales | None:
    """Which scales weights in int8 get: those that the kernels take which will multiply them. None: other weights."""
    if how != "int8":
        return None
    wanted = replace(config, quantize=how, tp=1)
    decided = for_device(wanted, describe_device(), jnp.dtype(dtype).itemsize == 2, model.head_dim)
    if decided.attention == "amx":
        return "coarse" if decided.quantize_activations and takes_coarse(model) else "fine"
    return int8_dot().scales if decided.attention == "cpu" and decided.quantize_activations else "fine"


def check_int8(model: ModelConfig, devices: int) -> None:
    platform = jax.default_backend()
    if platform != "cpu" or devices != 1:
        raise ConfigError(f"quantize='int8' is for a model on one CPU; got {devices} devices of {platform}")
    rows = {"hidden size": model.hidden_size, "heads": model.num_heads * model.head_dim, "MLP size": model.mlp_size}
    uneven = [f"{name} {terms}" for name, terms in rows.items() if terms % BLOCK]
    if uneven:
        raise ConfigError(f"quantize='int8' needs rows of weights in multiples of {BLOCK}; got {', '.join(uneven)}")


def _arranged(config: EngineConfig, model: ModelConfig, dtype: Any, hosts: "Hosts | None") -> Placement:
    """Over the devices that are here, by what one of them would hold; over those of all hosts if there are several."""
    device, count = describe_device(), len(jax.devices())
    if hosts is not None:
        if config.tp not in (None, count) or config.dp not in (None, 1):
            raise ConfigError(
                f"{hosts.processes} processes with {count} devices in all run tp={count} and dp=1; "
                f"got tp={config.tp} and dp={config.dp}"
            )
        return Placement(count, 1, f"one model over the devices of {hosts.processes} processes")
    machine = Machine(count, config.memory_bytes or device.memory_bytes, device.platform != "cpu")

    def weight_bytes(tp: int) -> int:
        parameters: int = share_of(model, tp).num_parameters
        return parameters * dtype.itemsize

    return arrange(config.tp, config.dp, machine, weight_bytes)


def _dtype_name(name: Dtype) -> Dtype:
    if name not in ("auto", "float32", "bfloat16"):
        raise ConfigError(f"dtype must be auto, float32 or bfloat16; got {name!r}")
    return name


def _dtype(name: Dtype) -> Any:
    """Auto is bfloat16 on accelerators and on CPUs with AMX, float32 elsewhere: also on ARM64 CPUs with bf16, where
    only matrix products gain by it and no speed was measured."""
    if name == "auto":
        name = "bfloat16" if jax.default_backend() != "cpu" or "amx_bf16" in cpu_features() else "float32"
    return jnp.dtype(name)


def default_dtype() -> Any:
    """What dtype auto means on this machine."""
    return _dtype("auto")
