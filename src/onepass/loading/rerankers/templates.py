"""In which words a model is asked to rank, and what is read: `RankTemplate`, the registry of known models, TOML files.

A model's own files come before the registry (`method`); a file that the user gives comes before both. Which request
a template makes is `engine.ranking`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from onepass.errors import ConfigError
from onepass.loading.rerankers.readouts import (
    LabelProbability,
    LogitDifference,
    Readout,
    SingleLogit,
    readout_from_dict,
    readout_to_dict,
)

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

# One newline between Instruct, Query and Document, as in the chat template of the model's own repository; the model
# card's vLLM example has two (examples/templates has that form as a file).
QWEN3_RERANKER = RankTemplate(
    context=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: {instruction}\n<Query>: {query}\n"
    ),
    item="<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    labels=("yes", "no"),
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)

MXBAI_RERANK_V2 = RankTemplate(
    context=(
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nquery: {query}\n"
    ),
    item=(
        "document: {document}\nYou are a search relevance expert who evaluates how well documents match search "
        "queries. For each query-document pair, carefully analyze the semantic relationship between them, then "
        "provide your binary relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:<|im_end|>\n"
        "<|im_start|>assistant\n"
    ),
    labels=("1", "0"),
    readout=LogitDifference("sigmoid"),
)

_ZERANK_ITEM = "<|im_start|>user\n{document}<|im_end|>\n<|im_start|>assistant\n"
ZERANK = RankTemplate(
    context="<|im_start|>system\n{query}<|im_end|>\n",
    item=_ZERANK_ITEM,
    labels=("Yes",),
    readout=SingleLogit(5.0, "sigmoid"),
    instructed=RankTemplate(
        context=("<|im_start|>system\n<query>{query}</query>\n<instruction>{instruction}</instruction><|im_end|>\n"),
        item=_ZERANK_ITEM,
        labels=("Yes",),
        readout=SingleLogit(5.0, "sigmoid"),
    ),
)

_CTXL_CONTEXT = "Check whether a given document contains information helpful to answer the query.\n"
CTXL_RERANK_V2 = RankTemplate(
    context=_CTXL_CONTEXT,
    item="<Document> {document}\n<Query> {query} ??",
    label_token_ids=(0,),
    readout=SingleLogit(),
    instructed=RankTemplate(
        context=_CTXL_CONTEXT,
        item="<Document> {document}\n<Query> {query} {instruction} ??",
        label_token_ids=(0,),
        readout=SingleLogit(),
    ),
)

# Parts of model names, and how those models are asked.
KNOWN_RERANKERS: Mapping[str, RankTemplate] = {
    "qwen3-reranker": QWEN3_RERANKER,
    "mxbai-rerank-base-v2": MXBAI_RERANK_V2,
    "mxbai-rerank-large-v2": MXBAI_RERANK_V2,
    "zerank-": ZERANK,
    "ctxl-rerank-v2": CTXL_RERANK_V2,
}


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


def ranker_for(model_name: str) -> Ranker:
    """By name alone. Rerankers are trained to say yes or no; plain base and chat models rank far better by
    likelihood."""
    name = model_name.lower()
    known = next((template for part, template in KNOWN_RERANKERS.items() if part in name), None)
    return Ranker("likelihood") if known is None else Ranker("label", label=known)


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
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the template file {path.name} must be TOML; {error}") from error
    method = told.pop("method", None)
    if method not in METHODS:
        raise ConfigError(f"{path.name}: method must be {' or '.join(METHODS)}; got {method!r}")
    if unknown := told.keys() - set(METHODS):
        raise ConfigError(f"{path.name}: tables must be {', '.join(METHODS)}; got {', '.join(sorted(unknown))}")
    if method not in told:
        raise ConfigError(f"{path.name}: method {method!r} wants a table [{method}]; it has none")
    templates: dict[str, Any] = {name: _template(path.name, name, table) for name, table in told.items()}
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
