"""Which scope of the network an operation belongs to: the code's named scopes, a program's text, a compiled model."""

import ast
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp

import onepass
from engine.programs.digests import CASES, builder_of
from onepass.bench.offline.hlo import OTHER, SCOPES, operations, part_of

SOURCE = Path(onepass.__file__).parent
TEXT = """\
HloModule jit_run

%fused_product (p0: f32[4,8]) -> f32[4,8] {
  %p0 = f32[4,8] parameter(0)
  %dot.1 = f32[4,8] dot(%p0, %p0), metadata={op_name="jit(run)/while/body/qkv/dot_general"}
  ROOT %add.2 = f32[4,8] add(%dot.1, %p0), metadata={op_name="jit(run)/while/body/qkv/norm/add"}
}

%fused_copy (p1: f32[4,8]) -> f32[4,8] {
  %p1 = f32[4,8] parameter(0)
  ROOT %copy.7 = f32[4,8] copy(%p1), metadata={op_name="jit(run)/kv_write/scatter"}
}

ENTRY %main (x: f32[4,8]) -> f32[4,8] {
  %x = f32[4,8] parameter(0)
  %fusion.1 = f32[4,8] fusion(%x), kind=kOutput, calls=%fused_product, metadata={op_name="jit(run)/qkv/norm/add"}
  %fusion.2 = f32[4,8] fusion(%fusion.1), kind=kLoop, calls=%fused_copy
  %exp.3 = f32[4,8] exponential(%fusion.2), metadata={op_name="jit(run)/attention/exp"}
  ROOT %copy.9 = f32[4,8] copy(%exp.3)
}
"""


def named_scopes() -> Iterator[str]:
    """Every name that is given to `jax.named_scope` in the package."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "named_scope":
                (name,) = node.args
                assert isinstance(name, ast.Constant), f"{path.name}: a scope's name must be written out"
                yield from name.value.split("/")


def test_scopes_of_the_code_are_those_of_the_profiler() -> None:
    assert set(named_scopes()) == SCOPES.keys()


def test_part_is_the_path_of_known_scopes() -> None:
    assert part_of("jit(run)/while/body/closed_call/mlp/gate_up/norm/mul") == "mlp/gate_up/norm"
    assert part_of("jit(run)/vocabulary/vmap(norm)/mul") == "vocabulary/norm"
    assert part_of("jit(run)/qkv/while/body/qkv/dot_general") == "qkv"
    assert part_of("jit(run)/normal/mlps/add") == OTHER


def test_fusion_with_a_product_is_the_product_and_what_is_fused_does_not_run() -> None:
    assert operations(TEXT).parts == {
        "fusion.1": "qkv",
        "fusion.2": "kv_write",
        "exp.3": "attention",
        "copy.9": OTHER,
    }


def test_scope_reaches_the_compiled_program() -> None:
    def run(x: jax.Array) -> jax.Array:
        with jax.named_scope("attention"):
            x = jnp.exp(x @ x)
        with jax.named_scope("mlp/down"):
            return jnp.sin(x) @ x

    text = jax.jit(run).lower(jnp.ones((64, 64))).compile().as_text()
    assert text is not None
    assert {"attention", "mlp/down"} <= set(operations(text).parts.values())


def test_programs_of_a_model_have_every_scope_of_one_device() -> None:
    """Lowered, not compiled: XLA may fuse a scope away."""
    builder = builder_of(CASES[0])
    smallest = {program.kind: program for program in builder.programs()}
    lowered = [builder.lower(program, CASES[0].platform) for program in smallest.values()]
    text = "\n".join(program.as_text(debug_info=True) for program in lowered)
    missing = [scope for scope in SCOPES if f"/{scope}/" not in text and f'/{scope}"' not in text]
    assert missing == ["all_reduce"]


def test_kernels_on_a_gpu_are_found_by_their_own_names() -> None:
    """Those of a CUDA graph, as a trace of an H200 has them; dots of operations are underscores there."""
    known = operations(TEXT)
    assert known.part("fusion_1") == known.part("fusion.1") == "qkv"
    assert known.part("qkv_product_mosaic_gpu_kernel") == "qkv_product"
    assert known.part("wrapped_iota") == OTHER
    assert known.likeness({"fusion_1", "fusion_2"}) == known.likeness({"fusion.1", "fusion.2"}) > 0
