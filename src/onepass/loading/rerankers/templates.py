"""In which words a model is asked to rank, and what is read: `RankTemplate`, `Ranker`, and both from TOML files.

A model's own files come before the `registry` (`method`); a file that the user gives comes before both. Which request
a template makes is `engine.ranking`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from onepass.errors import ConfigError
from onepass.loading.rerankers.readouts import LabelProbability, Readout, readout_from_dict, readout_to_dict

RankMethod = Literal["likelihood", "label"]
METHODS: tuple[RankMethod, ...] = ("likelihood", "label")
READOUT_KEYS = ("readout", "scale", "activation", "values")  # of a template file


@dataclass(frozen=True)
class FilledTemplate:
    """A template with its query: the context that documents share, and what stands around each of them."""

    context: str
    before: str
    after: str
    continuation: str
    strip: bool

    def item(self, document: str) -> str:
        return self.before + (document.strip() if self.strip else document) + self.after


@dataclass(frozen=True)
class RankTemplate:
    """`context` is shared, `item` follows it for every document, `continuation` is scored after each (likelihood), or
    the labels are read (label). The fields hold {query}, {document} and, where the model was trained with one,
    {instruction}, which `instruction` fills unless the caller gives another. Labels are texts or token ids; without
    either a method "label" reads the classes of the model's head."""

    context: str
    item: str
    continuation: str = ""
    labels: tuple[str, ...] = ()
    instruction: str = ""
    label_token_ids: tuple[int, ...] = ()
    readout: Readout = field(default_factory=LabelProbability)
    add_special_tokens: bool = True  # the tokenizer's BOS before the context
    strip: bool = False  # white space around query and document is removed, as the model's own template does
    instructed: "RankTemplate | None" = None  # in its place where the caller gives an instruction

    def context_with(self, instruction: str | None) -> str:
        """The context with its instruction. One that the template has no place for goes in front, as a line."""
        if "{instruction}" in self.context + self.item:
            return self.context.replace("{instruction}", instruction or self.instruction)
        return f"{instruction}\n{self.context}" if instruction else self.context

    def fill(self, query: str, instruction: str | None = None) -> FilledTemplate:
        if instruction and self.instructed is not None:
            return self.instructed.fill(query, instruction)
        query = query.strip() if self.strip else query
        before, _, after = self.item.partition("{document}")

        def filled(text: str) -> str:
            return text.replace("{instruction}", instruction or self.instruction).replace("{query}", query)

        context = self.context_with(instruction).replace("{query}", query)
        return FilledTemplate(context, filled(before), filled(after), filled(self.continuation), self.strip)


LIKELIHOOD = RankTemplate(
    context="Passage:",
    item=" {document}\nPlease write a question based on this passage.\nQuestion:",
    continuation=" {query}",
)

LABEL = RankTemplate(
    context="Query: {query}\n",
    item="Document: {document}\nDoes the document answer the query? Answer yes or no.\nAnswer:",
    labels=(" yes", " no"),
)


@dataclass(frozen=True)
class Ranker:
    """The templates of one model and the method it ranks best by. `problem` says why it cannot be told how the model
    is read; it then ranks only by a method that the caller names."""

    method: RankMethod
    likelihood: RankTemplate = LIKELIHOOD
    label: RankTemplate = LABEL
    problem: str = ""

    def template(self, method: RankMethod) -> RankTemplate:
        return self.likelihood if method == "likelihood" else self.label


def ranker_to_dict(ranker: Ranker) -> dict[str, Any]:
    """For JSON; `ranker_from_dict` reads it."""
    templates: dict[str, Any] = {name: template_to_dict(ranker.template(name)) for name in METHODS}
    return {"method": ranker.method, "problem": ranker.problem, **templates}


def ranker_from_dict(given: Mapping[str, Any]) -> Ranker:
    templates = {name: _template_from_dict(given[name]) for name in METHODS}
    return Ranker(given["method"], templates["likelihood"], templates["label"], given["problem"])


def template_to_dict(template: RankTemplate) -> dict[str, Any]:
    nested = None if template.instructed is None else template_to_dict(template.instructed)
    return {
        **asdict(replace(template, instructed=None)),
        "readout": readout_to_dict(template.readout),
        "instructed": nested,
    }


def _template_from_dict(given: Mapping[str, Any]) -> RankTemplate:
    nested = given["instructed"]
    changes = {
        "labels": tuple(given["labels"]),
        "label_token_ids": tuple(given["label_token_ids"]),
        "readout": readout_from_dict(given["readout"]),
        "instructed": None if nested is None else _template_from_dict(nested),
    }
    return RankTemplate(**{**given, **changes})


def ranker_from_file(path: Path) -> Ranker:
    """A user's own words, as TOML: `method`, and tables `likelihood` and `label` with the fields of `RankTemplate`."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the template file {path.name} must be TOML; {error}") from error
    method = tables.pop("method", None)
    if method not in METHODS:
        raise ConfigError(f"{path.name}: method must be {' or '.join(METHODS)}; got {method!r}")
    if unknown := tables.keys() - set(METHODS):
        raise ConfigError(f"{path.name}: tables must be {', '.join(METHODS)}; got {', '.join(sorted(unknown))}")
    if method not in tables:
        raise ConfigError(f"{path.name}: method {method!r} wants a table [{method}]; it has none")
    templates: dict[str, Any] = {name: _template(path.name, name, table) for name, table in tables.items()}
    return Ranker(method, **templates)


def _template(file: str, name: str, table: Any) -> RankTemplate:
    known = {field.name for field in fields(RankTemplate)} - {"instructed"} | set(READOUT_KEYS)
    if not isinstance(table, dict) or not table.keys() <= known or not {"context", "item"} <= table.keys():
        raise ConfigError(f"{file}: [{name}] wants context and item, and may have {', '.join(sorted(known))}")
    given = {key: value for key, value in table.items() if key not in READOUT_KEYS}
    labels, ids = given.pop("labels", []), given.pop("label_token_ids", [])
    flags = {key: given.pop(key) for key in ("add_special_tokens", "strip") if key in given}
    if not isinstance(labels, list) or not all(isinstance(text, str) for text in (*given.values(), *labels)):
        raise ConfigError(f"{file}: [{name}] must hold strings, and labels a list of strings")
    if not isinstance(ids, list) or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in ids):
        raise ConfigError(f"{file}: [{name}] label_token_ids must be a list of token ids")
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise ConfigError(f"{file}: [{name}] {', '.join(flags)} must be true or false")
    readout = _readout(file, name, table)
    template = RankTemplate(**given, labels=tuple(labels), label_token_ids=tuple(ids), readout=readout, **flags)
    _check_template(file, name, template)
    return template


def _readout(file: str, name: str, table: Mapping[str, Any]) -> Readout:
    given = {("kind" if key == "readout" else key): table[key] for key in READOUT_KEYS if key in table}
    try:
        return readout_from_dict({"kind": LabelProbability.kind, **given})
    except ConfigError as error:
        raise ConfigError(f"{file}: [{name}] {error}") from error


def _check_template(file: str, name: str, template: RankTemplate) -> None:
    count = len(template.labels) or len(template.label_token_ids)
    if template.labels and template.label_token_ids:
        raise ConfigError(f"{file}: [{name}] takes labels or label_token_ids, not both")
    reads_head = template.readout.kind == "linear_head"
    if (name == "label") != bool(count or reads_head) or (name == "likelihood") != ("{query}" in template.continuation):
        raise ConfigError(f"{file}: [label] wants labels; [likelihood] wants a continuation with {{query}}, no labels")
    if "{document}" not in template.item:
        raise ConfigError(f"{file}: [{name}] wants {{document}} in item")
    if count and name == "label" and (wanted := template.readout.check(count)):
        raise ConfigError(f"{file}: [{name}] readout {template.readout.kind} wants {wanted}; it has {count} labels")
