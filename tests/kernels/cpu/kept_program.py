"""A process of `test_build`: saves a compiled program with our kernels in it, or loads it; prints what it computes."""

import pickle
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from jax.experimental import serialize_executable

from attention.steps import Sequence, case
from kernels.cpu.comparison import program
from onepass.kernels.cpu import build
from onepass.kernels.cpu.attention import CpuAttention

build.load_cpu()
step_case = case([Sequence(70, 10, ((5, ()), (9, (3, 2))))], 64, entries=4, pages=8)
arguments = (step_case.q, step_case.keys, step_case.step)
path = Path(sys.argv[2])
if sys.argv[1] == "save":
    compiled = program(CpuAttention(2), step_case.shape).lower(*arguments).compile()
    path.write_bytes(pickle.dumps(serialize_executable.serialize(compiled)))
else:
    compiled = serialize_executable.deserialize_and_load(*pickle.loads(path.read_bytes()))
sys.stdout.buffer.write(pickle.dumps(compiled(*arguments)[0][: int(step_case.step.queries.count)].tobytes()))
