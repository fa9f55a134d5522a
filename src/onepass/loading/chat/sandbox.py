"""The Jinja environment that chat templates run in: transformers' settings, sandboxed, with bounded work.

A chat template comes with a model and is code. It may read what it is given and nothing else (no attribute that begins
with an underscore, no method that changes a value), and it may not run for ever: loop iterations, repeated text and the
length of the output are bounded. Where templates come from is `template`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_ITERATIONS = 1_000_000  # of all loops of one rendering together
MAX_CHARACTERS = 16 << 20  # of the rendered text, and of any text that the template repeats or pads
COUNTER = "_onepass_iterations"  # a name that templates cannot set: underscores are private


@dataclass
class IterationCounter:
    """How many loop iterations one rendering has made."""

    count: int = 0

    def counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.count += 1
            if self.count > MAX_ITERATIONS:
                raise SecurityError(f"the template loops more than {MAX_ITERATIONS:,} times")
            yield value


class GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's words for training; its body is rendered."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 reads it from the class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [nodes.Scope(body).set_lineno(line)]


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Counts loop iterations and refuses to multiply text beyond a bound."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None).set_lineno(loop.lineno)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_repeat(left, right)
            _check_repeat(right, left)
        if operator == "**" and isinstance(right, int | float) and abs(right) > 64:
            raise SecurityError("the template computes a power with an exponent above 64")
        if operator == "%" and isinstance(left, str):
            _check_width(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **named: Any) -> Any:
        if any(isinstance(value, int) and abs(value) > MAX_CHARACTERS for value in (*args, *named.values())):
            raise SecurityError(f"the template calls a function with a number above {MAX_CHARACTERS:,}")
        return super().call(context, function, *args, **named)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_width(value.__self__)
        return wrapped


@cache
def chat_environment() -> ChatEnvironment:
    """Made once: compiled templates keep a reference to it."""
    environment = ChatEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
    environment.filters |= {"tojson": _tojson, "counted": _counted, "center": _center}
    for unbounded in ("lipsum", "cycler", "joiner"):
        environment.globals.pop(unbounded, None)
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _PublicNamespace,
    }
    return environment


@pass_context
def _counted(context: Context, values: Any) -> Iterator[Any]:
    counter: IterationCounter = context[COUNTER]
    return counter.counted(values)


def _check_repeat(value: Any, times: Any) -> None:
    if isinstance(value, str | list | tuple) and isinstance(times, int) and len(value) * times > MAX_CHARACTERS:
        raise SecurityError(f"the template repeats a value beyond {MAX_CHARACTERS:,} elements")


def _check_width(form: str) -> None:
    if re.search(r"\d{6}", form):
        raise SecurityError("the template formats text with a width of six digits or more")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """transformers' filter: Jinja's own would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _center(value: Any, width: int = 80) -> str:
    return str(value).center(min(width, MAX_CHARACTERS))


def _raise_exception(message: str) -> str:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class _Dict:
    """`dict(...)` and `dict.fromkeys(...)`, without the type's other attributes."""

    def __call__(self, *args: Any, **items: Any) -> dict[Any, Any]:
        return dict(*args, **items)

    fromkeys: Callable[..., dict[Any, Any]] = staticmethod(dict.fromkeys)


class _PublicNamespace(Namespace):
    """Jinja's `namespace(...)`, which keeps no name that begins with an underscore."""

    def __init__(*args: Any, **names: Any) -> None:  # `self` may be a name in the namespace
        values = dict(*args[1:], **names)
        for name in values:
            _check_public(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace keeps no name that begins with an underscore; got {name!r}")
