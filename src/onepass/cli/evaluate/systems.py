"""The systems of `onepass evaluate`: MODEL or a server, and what `--compare` names; each open while it is evaluated."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from onepass.cli.inputs.score_options import wrong
from onepass.cli.parser import DEFAULT_MODEL
from onepass.cli.scoring import load_scorer, open_model_of

if TYPE_CHECKING:
    from onepass.evaluate.reranker import RankOptions, Reranker

Kind = Literal["model", "server", "run"]


@dataclass(frozen=True)
class System:
    """`target` is a model's name, a URL or a run file; `template` takes the place of the model's own words."""

    kind: Kind
    target: str
    template: Path | None = None

    def name(self, with_folders: bool = False) -> str:
        """In reports and run files; of a file without its folders, unless two systems would be called the same."""
        path = Path(self.target)
        base = path.name if path.exists() and not with_folders else self.target
        if self.template is None:
            return base
        return f"{base} with {self.template if with_folders else self.template.name}"


def systems_of(args: argparse.Namespace) -> list[System]:
    """The first is the one that is measured. A template that cannot be read is an error at once."""
    from onepass.loading.rerankers.templates import ranker_from_file

    if args.first_stage_only:
        return []
    first = System("model" if args.url is None else "server", args.url or args.model or DEFAULT_MODEL, args.template)
    second = None if args.compare is None else _compared(args.compare, first)
    for system in (first, second):
        if system is not None and system.template is not None:
            ranker_from_file(system.template)
    if second is None:
        return [first]
    if second == first:
        raise wrong(f"--compare {args.compare} is the system itself; name another model, template, server or run")
    return [first, second]


def _compared(text: str, first: System) -> System:
    path = Path(text)
    if text.startswith(("http://", "https://")):
        return System("server", text)
    if path.suffix == ".toml":
        return System(first.kind, first.target, path)
    if path.is_file() and path.suffix != ".gguf":
        return System("run", text)
    return System("model", text)


def names_of(systems: list[System]) -> list[str]:
    names = [system.name() for system in systems]
    return names if len(set(names)) == len(names) else [system.name(with_folders=True) for system in systems]


@contextmanager
def opened(args: argparse.Namespace, system: System, name: str) -> "Iterator[Reranker]":
    """A model's mistakes (no such name, a reranker that tells nothing) are raised before its weights are loaded."""
    from onepass.engine.ranking import chosen_method
    from onepass.evaluate.reranker import RankOptions, Reranker
    from onepass.loading.rerankers.templates import ranker_from_file

    options = RankOptions(args.method, args.instruction, args.mode or "auto")
    template = None if system.template is None else ranker_from_file(system.template)
    if system.kind == "server":
        with _served(args, system, name, options) as reranker:
            yield reranker
        return
    chosen = argparse.Namespace(**{**vars(args), "model": system.target, "template": system.template})
    model = open_model_of(chosen)
    chosen_method(template or model.ranker, args.method)
    with load_scorer(chosen, model) as scorer:
        yield Reranker.of_scorer(scorer, options, name)


@contextmanager
def _served(args: argparse.Namespace, system: System, name: str, options: "RankOptions") -> "Iterator[Reranker]":
    from onepass.client.blocking import Client
    from onepass.client.calls import ranker_of
    from onepass.engine.ranking import chosen_method
    from onepass.evaluate.reranker import Reranker
    from onepass.loading.rerankers.templates import ranker_from_file

    with Client(system.target, api_key=args.api_key) as client:
        info = client.info()
        ranker = ranker_of(info) if system.template is None else ranker_from_file(system.template)
        chosen_method(ranker, args.method)
        yield Reranker(name, client.submit, ranker, options)
