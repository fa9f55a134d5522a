"""Shapes and dtypes that signatures state are checked while tests run: jaxtyping's import hook, with beartype. In the
same tests JAX promotes no dtype to another silently. Which tests these are is `STRICT`.

Parameters and results with a jaxtyping annotation are checked, in functions, methods and nested functions of `CHECKED`;
mypy checks all other types. Fields of dataclasses are not checked: JAX rebuilds pytrees with shapes, shardings and
other stand-ins for their arrays. The hook is installed by `conftest` and by `models.signature_process`.
"""

import inspect
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, get_args

import jaxtyping
from beartype import beartype
from jaxtyping import AbstractArray, install_import_hook

CHECKED = ("onepass.parallel", "onepass.attention", "onepass.models", "onepass.kernels")
PROMOTION = "JAX_NUMPY_DTYPE_PROMOTION"
# Folders and files, relative to `tests/`. The others have not been tried yet (docs/log.md, 2026-11-17).
STRICT = (
    "attention/",
    "models/",
    "kernels/tpu/test_attention.py",
    "kernels/tpu/test_pages.py",
    "engine/test_packing.py",
    "engine/test_program_key.py",
    "engine/test_runner.py",
    "test_shape_checks.py",
)


def check_signatures() -> None:
    """Before any of the packages is imported."""
    install_import_hook(CHECKED, f"{__name__}.checked")


def check_as(node: str, environment: MutableMapping[str, str]) -> None:
    """For a test by its path relative to `tests/`: signatures in this process, promotion also in those that it
    starts."""
    strict = node.startswith(STRICT)
    jaxtyping.config.update("jaxtyping_disable", not strict)
    environment[PROMOTION] = "strict" if strict else "standard"
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_numpy_dtype_promotion", environment[PROMOTION])


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """What the hook decorates functions with; it gives a dataclass's `__init__`, too."""
    hints = {name: hint if states_shape(hint) else Any for name, hint in function.__annotations__.items()}
    if function.__name__ == "__init__" or all(hint is Any for hint in hints.values()):
        return function
    function.__annotations__ = hints
    return beartype(function)


def states_shape(hint: Any) -> bool:
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    return any(states_shape(part) for part in get_args(hint))
