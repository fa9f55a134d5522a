"""Which programs a model has on this machine, and which kernels: told without weights, for `onepass info`.

What `Scorer` would decide by default, on shapes in place of weights; nothing is built or compiled.
"""

from typing import Any

from onepass.engine.config import EngineConfig, describe_device
from onepass.engine.kernels import kernels_for
from onepass.engine.load import default_dtype, describe_storage, gguf_problem
from onepass.engine.parts import EngineParts
from onepass.loading.model import Model
from onepass.models.config import ModelConfig
from onepass.models.layout import Layout


def describe_weights(model: Model) -> str:
    """How a model's weights would lie in the memory of one device."""
    dtype = default_dtype()
    return describe_storage(model, dtype, gguf_problem(EngineConfig(), model, dtype, 1, build=False))


def describe_programs(model: ModelConfig) -> dict[str, Any]:
    dtype, device, layout = default_dtype(), describe_device(), Layout(model)
    kernels = kernels_for(EngineConfig(), device, layout.share, dtype, build=False)
    weights = layout.abstract_weights(dtype)
    parts = EngineParts(model, weights, kernels.config, device, kernels.attention, kernels.ops)
    return {
        "programs": [str(program) for program in parts.builder().programs()],
        "attention": {name: problem or "available" for name, problem in kernels.problems.items()},
        "backends": kernels.report(layout.share, weights.layers),
    }
