"""Shapes and dtypes that signatures state are checked while tests run: jaxtyping's import hook, with beartype.

Parameters and results with a jaxtyping annotation are checked, in functions, methods and nested functions of `CHECKED`;
mypy checks all other types. Fields of dataclasses are not checked: JAX rebuilds pytrees with shapes, shardings and
other stand-ins for their arrays. The hook is installed by `models.signature_process`.
"""

import inspect
from collections.abc import Callable
from typing import Any, get_args

from beartype import beartype
from jaxtyping import AbstractArray, install_import_hook

CHECKED = ("onepass.parallel", "onepass.attention", "onepass.models", "onepass.kernels")


def check_signatures() -> None:
    """Before any of the packages is imported."""
    install_import_hook(CHECKED, f"{__name__}.checked")


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
