"""Deployments of known shapes that the tests of this folder ask about. Nothing of them is allocated."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from onepass.bench.workloads import Workload, make_workload, resized, shape_named
from onepass.capacity.chips import Target
from onepass.capacity.deployment import Deployment
from onepass.capacity.shard import Share
from onepass.engine.config import EngineConfig
from onepass.models.config import ModelConfig
from onepass.models.known import known_config

BF16 = jnp.dtype("bfloat16")
# A model of few parameters, for the compiler.
NARROW = replace(
    known_config("qwen3-0.6b"), num_layers=2, hidden_size=256, mlp_size=512, vocab_size=2048, max_position=2048
)


def deployed(model: str | ModelConfig, target: str, tp: int = 1, **engine: Any) -> Deployment:
    config = known_config(model) if isinstance(model, str) else model
    return Deployment.of(Target.parse(target), Share(config, BF16, tp), EngineConfig(**engine))


def work_of(model: str, name: str = "contract", **sizes: int) -> Workload:
    shape = resized(shape_named(name), sizes.get("query"), sizes.get("items"), sizes.get("item_tokens"))
    return make_workload(name, shape, known_config(model).vocab_size)
