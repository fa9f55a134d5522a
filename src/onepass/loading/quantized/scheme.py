"""`quantization_config` of a config.json as a `QuantizationScheme`, or an error that says what is supported.

fp8                  e4m3 with scales of blocks, as DeepSeek and Qwen publish it     `scaled`
gptq                 `gptq`
awq                  `awq`
compressed-tensors   `compressed_tensors`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onepass.errors import UnsupportedModel
from onepass.loading.quantized.awq import AwqScheme
from onepass.loading.quantized.compressed_tensors import compressed_tensors_scheme
from onepass.loading.quantized.gptq import FORMATS, GptqScheme
from onepass.loading.quantized.packed_bits import SUPPORTED_BITS
from onepass.loading.quantized.scaled import scaled_matrices
from onepass.loading.quantized.tensors import QuantizationScheme, QuantizedTensor
from onepass.loading.tensor_reader import TensorInfo

METHODS = ("fp8", "gptq", "awq", "compressed-tensors")


@dataclass(frozen=True)
class Fp8Scheme:
    block: tuple[int, int] | None  # None: one scale per matrix or per row

    @property
    def description(self) -> str:
        return "FP8, " + ("a scale per matrix" if self.block is None else "blocks of {} x {}".format(*self.block))

    def tensors(self, stored: Mapping[str, TensorInfo]) -> dict[str, QuantizedTensor]:
        return scaled_matrices(stored, "weight_scale_inv", self.block)


def quantization_scheme(raw: Mapping[str, Any]) -> QuantizationScheme | None:
    """Of a whole config.json; None where its tensors are not quantised."""
    config = raw.get("quantization_config")
    if config is None:
        return None
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    if method == "fp8":
        return _fp8(config)
    if method == "gptq":
        return _gptq(config)
    if method == "awq":
        return _awq(config)
    if method == "compressed-tensors":
        return compressed_tensors_scheme(config)
    raise UnsupportedModel(
        f"quantization_config.quant_method {method!r} is not supported; supported: {', '.join(METHODS)}, "
        "unquantised safetensors, and GGUF files"
    )


def _fp8(config: Mapping[str, Any]) -> Fp8Scheme:
    if (fmt := config.get("fmt", "e4m3")) not in ("e4m3", "float8_e4m3fn"):
        raise UnsupportedModel(f"quantization_config.fmt must be 'e4m3'; got {fmt!r}")
    if config.get("scale_fmt") not in (None, "float"):
        raise UnsupportedModel(
            f"quantization_config.scale_fmt {config['scale_fmt']!r} is not supported; scales must be float"
        )
    block = config.get("weight_block_size")
    if block is None:
        return Fp8Scheme(None)
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(n, int) and n > 0 for n in block):
        raise UnsupportedModel(f"quantization_config.weight_block_size must be [rows, columns]; got {block!r}")
    return Fp8Scheme((block[0], block[1]))


def _gptq(config: Mapping[str, Any]) -> GptqScheme:
    bits, group, form = config.get("bits"), config.get("group_size", 128), config.get("checkpoint_format") or "gptq"
    if bits not in SUPPORTED_BITS:
        raise UnsupportedModel(f"GPTQ bits must be one of {', '.join(map(str, SUPPORTED_BITS))}; got {bits!r}")
    if form not in FORMATS:
        raise UnsupportedModel(f"GPTQ checkpoint_format {form!r} is not supported; supported: {', '.join(FORMATS)}")
    overrides = [name for name in config.get("dynamic") or () if not name.startswith("-:")]
    if overrides:
        raise UnsupportedModel(f"GPTQ with other bits for some modules is not supported; dynamic has {overrides[0]!r}")
    if (word := config.get("pack_dtype") or "int32") not in ("int32", "torch.int32"):
        raise UnsupportedModel(f"GPTQ pack_dtype must be int32; got {word!r}")
    return GptqScheme(int(bits), _group_size("GPTQ", group), FORMATS[form])


def _awq(config: Mapping[str, Any]) -> AwqScheme:
    version = str(config.get("version") or config.get("format") or "gemm").lower()
    if version != "gemm":
        raise UnsupportedModel(f"AWQ version {version!r} is not supported; supported: gemm")
    if (bits := config.get("bits", 4)) != 4:
        raise UnsupportedModel(f"AWQ bits must be 4; got {bits!r}")
    if not config.get("zero_point", True):
        raise UnsupportedModel("AWQ without zero points is not supported; zero_point is false")
    return AwqScheme(_group_size("AWQ", config.get("group_size", 128)))


def _group_size(method: str, group: Any) -> int:
    if isinstance(group, bool) or not isinstance(group, int) or not (group == -1 or group > 0):
        raise UnsupportedModel(f"{method} group_size must be -1 or above 0; got {group!r}")
    return group
