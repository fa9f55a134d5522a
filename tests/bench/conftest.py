"""A tiny model in float32 for the benchmark's tests, loaded once, and a workload that fits it."""

from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import pytest

from onepass.bench.workloads import Shape, Workload, make_workload
from onepass.loading.model import Model, open_model
from onepass.models.weights import Weights

SHAPE = Shape(40, 8, 6, 6)
VOCABULARY = 600


@pytest.fixture(scope="session")
def loaded(checkpoint: Callable[[str], Path]) -> tuple[Model, Weights]:
    model = open_model(str(checkpoint("qwen3")))
    return model, model.load(jnp.dtype("float32"))


@pytest.fixture(scope="session")
def workload() -> Workload:
    return make_workload("tiny", SHAPE, VOCABULARY).with_labels([5, 6, 7])
