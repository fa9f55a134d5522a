"""How a model is asked to rank: by query likelihood, or by a yes/no label, and in which words.

The registry maps a model's name to its method; what the method computes is `scorer`.
"""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from onepass.errors import ConfigError

RankMethod = Literal["likelihood", "label"]
METHODS: tuple[RankMethod, ...] = ("likelihood", "label")


@dataclass(frozen=True)
class RankTemplate:
    """`context` is shared, `item` follows it for every document, `continuation` is scored after each (likelihood), or
    the labels are read (label). The fields hold {query}, {document} and, where the model was trained with one,
    {instruction}, which `instruction` fills unless the caller gives another; an empty `labels` means likelihood."""

    context: str
    item: str
    continuation: str = ""
    labels: tuple[str, ...] = ()
    instruction: str = ""

    def context_with(self, instruction: str | None) -> str:
        """The context with its instruction. One that the template has no place for goes in front, as a line."""
        if "{instruction}" in self.context:
            return self.context.replace("{instruction}", instruction or self.instruction)
        return f"{instruction}\n{self.context}" if instruction else self.context


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


@dataclass(frozen=True)
class Ranker:
    """The templates of one model and the method it ranks best by."""

    method: RankMethod
    likelihood: RankTemplate = LIKELIHOOD
    label: RankTemplate = LABEL

    def template(self, method: RankMethod) -> RankTemplate:
        return self.likelihood if method == "likelihood" else self.label


def ranker_for(model_name: str) -> Ranker:
    """Rerankers are trained to say yes or no; plain base and chat models rank far better by likelihood."""
    if "qwen3-reranker" in model_name.lower():
        return Ranker("label", label=QWEN3_RERANKER)
    return Ranker("likelihood")


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
    return Ranker(method, **{name: _template(path.name, name, table) for name, table in told.items()})


def _template(file: str, name: str, table: Any) -> RankTemplate:
    known = {field.name for field in fields(RankTemplate)}
    if not isinstance(table, dict) or not table.keys() <= known or not {"context", "item"} <= table.keys():
        raise ConfigError(f"{file}: [{name}] wants context and item, and may have {', '.join(sorted(known))}")
    labels = table.get("labels", [])
    texts = [value for key, value in table.items() if key != "labels"]
    if not isinstance(labels, list) or not all(isinstance(text, str) for text in (*texts, *labels)):
        raise ConfigError(f"{file}: [{name}] must hold strings, and labels a list of strings")
    template = RankTemplate(**{**table, "labels": tuple(labels)})
    if (name == "label") != bool(template.labels) or (name == "likelihood") != ("{query}" in template.continuation):
        raise ConfigError(f"{file}: [label] wants labels; [likelihood] wants a continuation with {{query}}, no labels")
    if "{document}" not in template.item:
        raise ConfigError(f"{file}: [{name}] wants {{document}} in item")
    return template
