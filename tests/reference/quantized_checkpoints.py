"""Quantised checkpoints made with torch from a tiny one, and the same dequantised by torch: what onepass must read.

`make` is called by tests and runs this file as a script under the reference environment's Python. It writes folders
below `out`: `NAME` as its format packs it, and `NAME-plain` with the weights that the format means, in float32. GPTQ,
AWQ and block-wise FP8 are packed and dequantised here, bit by bit; compressed-tensors by the package of that name.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

GROUP = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
FP8_BLOCK = (40, 24)  # no size of a matrix is a multiple
Tensors = dict[str, Any]


def make(reference_python: Path, checkpoint: Path, out: Path) -> list[str]:
    """The names of the formats."""
    done = subprocess.run(
        [str(reference_python), __file__, str(checkpoint), str(out)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode != 0:
        raise RuntimeError(f"the reference process exited with {done.returncode}:\n{done.stderr[-4000:]}")
    return sorted(path.name for path in out.iterdir() if not path.name.endswith("-plain"))


def words(numbers: Any, bits: int) -> Any:
    """[numbers, columns] as [numbers · bits / 32, columns] of int32: one long binary number per column, cut up."""
    import torch  # type: ignore[import-not-found]

    columns = []
    for column in numbers.T.tolist():
        whole = sum(number << (bits * place) for place, number in enumerate(column))
        count = -(-len(column) * bits // 32)
        parts = [(whole >> (32 * place)) & 0xFFFFFFFF for place in range(count)]
        columns.append([part - (1 << 32) if part >> 31 else part for part in parts])
    return torch.tensor(columns, dtype=torch.int64).T.to(torch.int32).contiguous()


def quantized(weight: Any, bits: int, groups: Any) -> tuple[Any, Any, Any]:
    """Numbers [in, out], scales and zero points [groups, out] of a weight [out, in]."""
    import torch

    highest, count = (1 << bits) - 1, int(groups.max()) + 1
    scale, zero = torch.empty(count, weight.shape[0]), torch.empty(count, weight.shape[0], dtype=torch.int64)
    numbers = torch.empty(weight.T.shape, dtype=torch.int64)
    for group in range(count):
        part = weight.T[groups == group]
        low, high = part.min(0).values.clamp(max=0), part.max(0).values.clamp(min=0)
        scale[group] = ((high - low) / highest).half().float()
        zero[group] = (-low / scale[group]).round().clamp(1, highest)
        numbers[groups == group] = ((part / scale[group]).round() + zero[group]).clamp(0, highest).long()
    return numbers, scale, zero


def gptq(
    bits: int, act_order: bool, version: str, group_size: int = GROUP
) -> Callable[[str, Any], tuple[Tensors, Any]]:
    def convert(module: str, weight: Any) -> tuple[Tensors, Any]:
        import torch

        size = weight.shape[1]
        groups = torch.arange(size) // (size if group_size == -1 else group_size)
        if act_order:
            groups = groups[torch.randperm(size)]
        numbers, scale, zero = quantized(weight, bits, groups)
        stored = zero - 1 if version == "gptq" else zero
        tensors = {
            f"{module}.qweight": words(numbers, bits),
            f"{module}.qzeros": words(stored.T, bits).T.contiguous(),
            f"{module}.scales": scale.half(),
            f"{module}.g_idx": groups.to(torch.int32),
        }
        if not act_order:
            del tensors[f"{module}.g_idx"]
        return tensors, ((numbers - zero[groups]) * scale[groups]).T

    return convert


def awq(module: str, weight: Any) -> tuple[Tensors, Any]:
    import torch

    groups = torch.arange(weight.shape[1]) // GROUP
    numbers, scale, zero = quantized(weight, 4, groups)

    def packed(matrix: Any) -> Any:
        out = torch.zeros(matrix.shape[0], matrix.shape[1] // 8, dtype=torch.int64)
        for column in range(out.shape[1]):
            for place, source in enumerate(AWQ_ORDER):
                out[:, column] |= matrix[:, column * 8 + source] << (4 * place)
        return torch.where(out >= 1 << 31, out - (1 << 32), out).to(torch.int32)

    tensors = {f"{module}.qweight": packed(numbers), f"{module}.qzeros": packed(zero)}
    return {**tensors, f"{module}.scales": scale.half()}, ((numbers - zero[groups]) * scale[groups]).T


def fp8_blocks(module: str, weight: Any) -> tuple[Tensors, Any]:
    import torch

    rows, columns = FP8_BLOCK
    shape = (-(-weight.shape[0] // rows), -(-weight.shape[1] // columns))
    scale, small, plain = torch.empty(shape), torch.empty_like(weight).to(torch.float8_e4m3fn), weight.clone()
    for a in range(shape[0]):
        for b in range(shape[1]):
            at = (slice(a * rows, (a + 1) * rows), slice(b * columns, (b + 1) * columns))
            scale[a, b] = weight[at].abs().max() / 448
            small[at] = (weight[at] / scale[a, b]).to(torch.float8_e4m3fn)
            plain[at] = small[at].float() * scale[a, b]
    return {f"{module}.weight": small, f"{module}.weight_scale_inv": scale}, plain


def compressed(weights: dict[str, Any], name: str) -> Callable[[str, Any], tuple[Tensors, Any]]:
    """By the package: `weights` are the fields of its QuantizationArgs."""
    from compressed_tensors.compressors import BaseCompressor  # type: ignore[import-not-found]
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme  # type: ignore[import-not-found]
    from compressed_tensors.quantization.utils import calculate_qparams  # type: ignore[import-not-found]

    args = QuantizationArgs(**weights)
    scheme, compressor = (
        QuantizationScheme(targets=["Linear"], weights=args),
        BaseCompressor.get_value_from_registry(name),
    )

    def convert(module: str, weight: Any) -> tuple[Tensors, Any]:
        import torch

        parts = weight.reshape(weight.shape[0], -1, args.group_size or weight.shape[1])
        if args.strategy == "tensor":
            parts = weight.reshape(1, 1, -1)
        scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), args)
        scale = scale.reshape(-1) if args.strategy == "tensor" else scale
        state = {"weight": weight, "weight_scale": scale.float(), "weight_zero_point": zero.to(torch.int8)}
        if args.type == "float" or args.symmetric:
            del state["weight_zero_point"]
        stored = compressor.compress(state, scheme)
        plain = compressor.decompress(dict(stored), scheme)["weight"]
        return {f"{module}.{part}": tensor.contiguous() for part, tensor in stored.items()}, plain.float()

    return convert


def compressed_config(form: str, weights: dict[str, Any]) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    known = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
    return {**known, "ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed"}


def formats() -> dict[str, tuple[dict[str, Any], Callable[[str, Any], tuple[Tensors, Any]]]]:
    four = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False}
    packed = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
    asymmetric, symmetric = {**packed, "symmetric": False}, {**packed, "symmetric": True}
    channel = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    per_row = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    whole = {**per_row, "strategy": "tensor"}
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": list(FP8_BLOCK)}
    v2 = {**four, "checkpoint_format": "gptq_v2"}
    return {
        "gptq-act-order": ({**four, "desc_act": True}, gptq(4, True, "gptq")),
        "gptq-v2": (v2, gptq(4, False, "gptq_v2")),
        "gptq-8": ({**v2, "bits": 8, "group_size": -1}, gptq(8, False, "gptq_v2", -1)),
        "gptq-3": ({**four, "bits": 3}, gptq(3, False, "gptq")),
        "gptq-2": ({**four, "bits": 2}, gptq(2, True, "gptq")),
        "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}, awq),
        "fp8-blocks": (fp8, fp8_blocks),
        "packed-asymmetric": (
            compressed_config("pack-quantized", asymmetric),
            compressed(asymmetric, "pack-quantized"),
        ),
        "packed-symmetric": (compressed_config("pack-quantized", symmetric), compressed(symmetric, "pack-quantized")),
        "int8": (compressed_config("int-quantized", channel), compressed(channel, "int-quantized")),
        "fp8-rows": (compressed_config("float-quantized", per_row), compressed(per_row, "float-quantized")),
        "fp8-tensor": (compressed_config("float-quantized", whole), compressed(whole, "float-quantized")),
    }


def main() -> None:
    import torch
    from safetensors.torch import load_file, save_file  # type: ignore[import-not-found]

    torch.manual_seed(0)
    checkpoint, out = map(Path, sys.argv[1:])
    tensors = load_file(checkpoint / "model.safetensors")
    config = json.loads((checkpoint / "config.json").read_text())
    for name, (quantization, convert) in formats().items():
        packed, plain = {}, {}
        for key, tensor in tensors.items():
            if not key.endswith("_proj.weight"):
                packed[key] = plain[key] = tensor
                continue
            stored, plain[key] = convert(key.removesuffix(".weight"), tensor)
            packed |= stored
        for folder, kept, keys in (
            (out / name, packed, {**config, "quantization_config": quantization}),
            (out / f"{name}-plain", plain, config),
        ):
            folder.mkdir(parents=True)
            save_file({key: tensor.contiguous() for key, tensor in kept.items()}, folder / "model.safetensors")
            (folder / "config.json").write_text(json.dumps(keys))
            for file in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(checkpoint / file, folder / file)


if __name__ == "__main__":
    main()
