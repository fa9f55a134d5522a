"""Checkpoints of compressed-tensors (llm-compressor, RedHatAI): FP8, int8, and integers of few bits packed into words.

    X.weight, X.weight_scale       FP8 and int8: `scaled`
    X.weight_packed                I32 [out, in · bits / 32]; numbers are stored plus half their range
    X.weight_scale                 [out, in / group], or [out, 1]
    X.weight_zero_point            I32 [out · bits / 32, in / group], packed along the output; of asymmetric weights
    X.weight_shape                 I64 [2]: out and in
    X.weight_g_idx                 I32 [in]: the group of each input, where act-order changed it

Activations are not quantised here, whatever the config says of them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onepass.errors import BadCheckpoint, UnsupportedModel
from onepass.loading.quantized.packed_bits import SUPPORTED_BITS, unpack, unpack_range
from onepass.loading.quantized.scaled import FLOATS, scaled_matrices
from onepass.loading.quantized.tensors import QuantizedTensor, Scales, checked_shape
from onepass.loading.safetensors import SafetensorsReader
from onepass.loading.tensor_reader import TensorInfo

FORMATS = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized", "mixed-precision")
STRATEGIES = ("tensor", "channel", "group", "block")


@dataclass(frozen=True)
class WeightArgs:
    """The `weights` of one of the config's groups."""

    targets: tuple[str, ...]
    kind: str  # float or int
    bits: int
    strategy: str
    group_size: int
    block: tuple[int, int] | None

    def covers(self, module: str) -> bool:
        """Every matrix of ours that a checkpoint can quantise is a Linear."""
        return any(
            target == "Linear" or target == module or (target.startswith("re:") and re.match(target[3:], module))
            for target in self.targets
        )

    def block_of(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns that share a scale."""
        if self.strategy == "block":
            assert self.block is not None
            return self.block
        if self.strategy == "tensor":
            return shape
        return 1, self.group_size if self.strategy == "group" else shape[1]

    def __str__(self) -> str:
        name = "FP8" if self.kind == "float" else f"int{self.bits}"
        sizes = {"group": f"groups of {self.group_size}", "block": f"blocks of {self.block}"}
        return f"{name} ({sizes.get(self.strategy, f'a scale per {self.strategy}')})"


@dataclass(frozen=True)
class PackedMatrix:
    module: str
    shape: tuple[int, int]
    stored_names: tuple[str, ...]
    bits: int
    group: int

    def scales(self, file: SafetensorsReader) -> Scales:
        scale = file.stored(f"{self.module}.weight_scale").astype(np.float32).reshape(self.shape[0], -1)
        zero, groups = None, None
        if (name := f"{self.module}.weight_zero_point") in self.stored_names:
            packed = unpack(file.stored(name).T, self.bits)[:, : self.shape[0]]
            zero = packed.T.astype(np.float32) - (1 << self.bits - 1)
        if (name := f"{self.module}.weight_g_idx") in self.stored_names:
            groups = np.asarray(file.stored(name))
            if groups.min() < 0 or groups.max() >= scale.shape[1]:
                raise BadCheckpoint(f"{name} must name groups 0 to {scale.shape[1] - 1}; it has {groups.max()}")
        return Scales(scale, zero, 1, self.group, groups)

    def numbers(self, file: SafetensorsReader, rows: slice, columns: slice) -> np.ndarray:
        words = file.stored(f"{self.module}.weight_packed", (rows,))
        return unpack_range(words, self.bits, columns).astype(np.float32) - (1 << self.bits - 1)


@dataclass(frozen=True)
class CompressedTensorsScheme:
    groups: tuple[WeightArgs, ...]

    @property
    def description(self) -> str:
        return "compressed-tensors, " + ", ".join(dict.fromkeys(map(str, self.groups)))

    def tensors(self, stored: Mapping[str, TensorInfo]) -> dict[str, QuantizedTensor]:
        packed = [name.removesuffix(".weight_packed") for name in stored if name.endswith(".weight_packed")]
        blocks = {}
        for name, info in stored.items():
            if info.dtype in ("F8_E4M3", "I8") and name.endswith(".weight") and len(info.shape) == 2:
                module = name.removesuffix(".weight")
                blocks[module] = self._args(module).block_of((info.shape[0], info.shape[1]))
        return scaled_matrices(stored, "weight_scale", blocks) | {
            f"{module}.weight": self._packed(stored, module) for module in packed
        }

    def _args(self, module: str) -> WeightArgs:
        for group in self.groups:
            if group.covers(module):
                return group
        raise BadCheckpoint(f"{module} is quantised, but no group of quantization_config.config_groups targets it")

    def _packed(self, stored: Mapping[str, TensorInfo], module: str) -> PackedMatrix:
        args, info = self._args(module), stored[f"{module}.weight_packed"]
        scale = stored.get(f"{module}.weight_scale")
        if info.dtype != "I32" or len(info.shape) != 2 or scale is None or args.strategy not in ("group", "channel"):
            raise BadCheckpoint(
                f"{module}.weight_packed must be an I32 matrix with weight_scale, in groups or channels; "
                f"it is {list(info.shape)} in {info.dtype}, strategy {args.strategy!r}"
            )
        size_out = info.shape[0]
        size_in = scale.shape[-1] * args.group_size if args.strategy == "group" else info.shape[1] * 32 // args.bits
        group = args.block_of((size_out, size_in))[1]
        checked_shape(stored, f"{module}.weight_packed", (size_out, -(-size_in * args.bits // 32)), ("I32",))
        checked_shape(stored, f"{module}.weight_scale", (size_out, -(-size_in // group)), FLOATS)
        parts = ["weight_packed", "weight_scale"]
        optional: dict[str, tuple[int, ...]] = {
            "weight_shape": (2,),
            "weight_zero_point": (-(-size_out * args.bits // 32), -(-size_in // group)),
            "weight_g_idx": (size_in,),
        }
        for part, shape in optional.items():
            if f"{module}.{part}" in stored:
                checked_shape(stored, f"{module}.{part}", shape, ("I64",) if part == "weight_shape" else ("I32",))
                parts.append(part)
        names = tuple(f"{module}.{part}" for part in parts)
        return PackedMatrix(module, (size_out, size_in), names, args.bits, group)


def compressed_tensors_scheme(raw: Mapping[str, Any]) -> CompressedTensorsScheme:
    if raw.get("format") not in FORMATS:
        raise UnsupportedModel(
            f"compressed-tensors format {raw.get('format')!r} is not supported; supported: {', '.join(FORMATS)}"
        )
    if raw.get("kv_cache_scheme"):
        raise UnsupportedModel("compressed-tensors kv_cache_scheme is not supported; keys and values stay in the dtype")
    if (raw.get("sparsity_config") or {}).get("format", "dense") != "dense":
        raise UnsupportedModel(f"compressed-tensors sparsity {raw['sparsity_config'].get('format')!r} is not supported")
    if (raw.get("transform_config") or {}).get("config_groups"):
        raise UnsupportedModel("compressed-tensors transform_config (rotations of weights) is not supported")
    groups = raw.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise UnsupportedModel(f"compressed-tensors needs config_groups; got {groups!r}")
    return CompressedTensorsScheme(tuple(_weight_args(name, group) for name, group in groups.items()))


def _weight_args(name: str, group: Mapping[str, Any]) -> WeightArgs:
    weights = group.get("weights") or {}
    kind, bits = str(weights.get("type", "int")), int(weights.get("num_bits") or 8)
    strategy = str(weights.get("strategy") or ("group" if weights.get("group_size") else "tensor"))
    supported = (kind == "float" and bits == 8) or (kind == "int" and bits in SUPPORTED_BITS)
    if not weights or not supported or strategy not in STRATEGIES:
        raise UnsupportedModel(
            f"compressed-tensors {name} with weights of {bits} bits ({kind}) and strategy {strategy!r} is not "
            f"supported; supported: FP8, and int of {', '.join(map(str, SUPPORTED_BITS))} bits, "
            f"by {', '.join(STRATEGIES)}"
        )
    targets, group_size = tuple(group.get("targets") or ()), weights.get("group_size") or 0
    if strategy == "group" and not (isinstance(group_size, int) and group_size > 0):
        raise UnsupportedModel(f"compressed-tensors {name} needs a group_size above 0; got {group_size!r}")
    block = _block(name, weights.get("block_structure")) if strategy == "block" else None
    return WeightArgs(targets, kind, bits, strategy, int(group_size), block)


def _block(name: str, block: Any) -> tuple[int, int]:
    if not isinstance(block, Sequence) or len(block) != 2 or not all(isinstance(n, int) and n > 0 for n in block):
        raise UnsupportedModel(f"compressed-tensors {name} needs block_structure [rows, columns]; got {block!r}")
    return block[0], block[1]
