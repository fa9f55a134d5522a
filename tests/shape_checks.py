"""Shapes and dtypes that signatures state are checked while tests run: jaxtyping's import hook, with beartype. In the
same tests JAX promotes no dtype to another silently. Which tests these are is `STRICT`; why others are not is `OFF`.

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
# Folders and files, relative to `tests/`: everything that traces functions of `CHECKED`.
STRICT = (
    "attention/",
    "engine/",
    "kernels/",
    "loading/",
    "models/",
    "parallel/",
    "test_shape_checks.py",
)
AS_USERS = "runs what users run, with JAX's own settings: the library, commands and servers in processes of their own"
NO_ARRAYS = "calls no function with arrays, or only through an engine, whose programs are traced by `engine/`"
# Where the checks are off, and why.
OFF = {
    **dict.fromkeys(("cli/", "clients/", "browser/", "integrations/", "parity/", "release/", "server/"), AS_USERS),
    **dict.fromkeys(("documentation/", "repository/", "validate/", "test_"), AS_USERS),
    **dict.fromkeys(("bench/", "bulk/", "capacity/", "client/", "decisions/", "evaluate/", "evidence/"), NO_ARRAYS),
    **dict.fromkeys(("html_report/", "visualize/"), NO_ARRAYS),
}


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
