"""Tests run with checked shapes and without silent promotion of dtypes: deliberate mistakes are noticed."""

import jax.numpy as jnp
import pytest
from jax.dtypes import TypePromotionError
from jaxtyping import TypeCheckError

from onepass.models import layers


def test_an_array_whose_shape_differs_from_the_signature_is_an_error() -> None:
    x, angles = jnp.zeros((4, 2, 8)), jnp.zeros((4, 4))
    assert layers.rotate(x, (angles, angles)).shape == x.shape
    with pytest.raises(TypeCheckError):
        layers.rotate(x, (angles, jnp.zeros((5, 4))))


def test_a_sum_of_two_dtypes_is_an_error() -> None:
    with pytest.raises(TypePromotionError):
        jnp.ones(2, jnp.bfloat16) + jnp.ones(2, jnp.float32)
