"""Tests run with checked shapes and without silent promotion of dtypes: deliberate mistakes are noticed."""

from pathlib import Path

import jax.numpy as jnp
import pytest
from jax.dtypes import TypePromotionError
from jaxtyping import TypeCheckError

from onepass.models import layers
from shape_checks import OFF, STRICT

TESTS = Path(__file__).parent


def test_an_array_whose_shape_differs_from_the_signature_is_an_error() -> None:
    x, angles = jnp.zeros((4, 2, 8)), jnp.zeros((4, 4))
    assert layers.rotate(x, (angles, angles)).shape == x.shape
    with pytest.raises(TypeCheckError):
        layers.rotate(x, (angles, jnp.zeros((5, 4))))


def test_a_sum_of_two_dtypes_is_an_error() -> None:
    with pytest.raises(TypePromotionError):
        jnp.ones(2, jnp.bfloat16) + jnp.ones(2, jnp.float32)


def test_every_file_of_tests_is_checked_or_says_why_not() -> None:
    files = [path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")]
    assert [file for file in files if not file.startswith((*STRICT, *OFF))] == []
    assert [part for part in (*STRICT, *OFF) if not any(file.startswith(part) for file in files)] == []
