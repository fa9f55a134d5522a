"""Lowers the programs of `engine.programs.digests` with checked signatures and strict promotion of dtypes, for
`test_signatures`. Prints one line of JSON: their digests, and the errors that two deliberate mistakes raise.

A process of its own: the hook must be there before any of the package is imported.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUMPY_DTYPE_PROMOTION": "strict"}
sys.path.insert(0, str(Path(__file__).parents[1]))

from shape_checks import check_signatures

check_signatures()

import jax.numpy as jnp  # noqa: E402

from engine.programs.digests import CASES, digests_of  # noqa: E402
from onepass.models import layers  # noqa: E402


def angles_of_other_tokens() -> Any:
    return layers.rotate(jnp.zeros((4, 2, 8)), (jnp.zeros((4, 4)), jnp.zeros((5, 4))))


def sum_of_other_dtypes() -> Any:
    return jnp.ones(2, jnp.bfloat16) + jnp.ones(2, jnp.float32)


def error_of(mistake: Callable[[], Any]) -> str:
    try:
        mistake()
    except Exception as error:
        return type(error).__name__
    return "none"


if __name__ == "__main__":
    errors = [error_of(mistake) for mistake in (angles_of_other_tokens, sum_of_other_dtypes)]
    print(json.dumps({"errors": errors, "programs": {str(case): digests_of(case) for case in CASES}}))
