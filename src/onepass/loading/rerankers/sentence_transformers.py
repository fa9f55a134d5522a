"""Cross-encoders in the folder format of sentence-transformers: how a pair becomes a prompt, and what is read.

    modules.json                        the modules: the transformer, then LogitScore for a language model
    1_LogitScore/config.json            true_token_id, and false_token_id or null
    sentence_bert_config.json           text-generation or sequence-classification; whether pairs are chat messages
    config_sentence_transformers.json   prompts, the default prompt, the activation

Nothing is guessed: a module, an activation or a task that onepass does not compute is an UnsupportedModel.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onepass.errors import BadCheckpoint, UnsupportedModel
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.rerankers.pair_prompt import PairFormat, pair_template
from onepass.loading.rerankers.readouts import Activation, ClassHead, LogitDifference, SingleLogit, class_readout
from onepass.loading.rerankers.templates import Ranker, RankTemplate
from onepass.loading.tokenizer import TextTokenizer

TASKS = ("text-generation", "sequence-classification")
# The last part of the class's name; the rest has changed between versions.
ACTIVATION_NAMES: dict[str, Activation] = {"Sigmoid": "sigmoid", "Identity": "identity"}


def cross_encoder_ranker(
    folder: Path, chat: ChatTemplates, tokenizer: TextTokenizer, head: ClassHead | None
) -> Ranker | None:
    """None where the folder has no modules.json, or is no cross-encoder."""
    if not (folder / "modules.json").is_file():
        return None
    modules = _modules(folder)
    config = _json(folder / "config_sentence_transformers.json")
    transformer = _json(folder / "sentence_bert_config.json")
    logit_score = next((path for kind, path in modules if kind == "LogitScore"), None)
    if config.get("model_type", "CrossEncoder") != "CrossEncoder":
        return None
    unknown = [kind for kind, _ in modules if kind not in ("Transformer", "LogitScore")]
    if unknown:
        raise UnsupportedModel(f"modules.json has {', '.join(unknown)}; supported: Transformer, LogitScore")
    activation = _activation(config, folder, one_score=head is None or len(head.labels) == 1)
    template = _template(transformer, config, chat, tokenizer)
    if logit_score is None:
        if head is None:
            raise BadCheckpoint("modules.json has no LogitScore, and the model has no classification head")
        return Ranker("label", label=replace(template, readout=class_readout(head, activation)))
    score = _json(folder / logit_score / "config.json")
    true_id, false_id = score.get("true_token_id"), score.get("false_token_id")
    if not isinstance(true_id, int) or not isinstance(false_id, int | None):
        raise BadCheckpoint(f"{logit_score}/config.json must have true_token_id, and false_token_id or null")
    if false_id is None:
        label = replace(template, label_token_ids=(true_id,), readout=SingleLogit(1.0, activation))
    else:
        label = replace(template, label_token_ids=(true_id, false_id), readout=LogitDifference(activation))
    return Ranker("label", label=label)


def _template(
    transformer: Mapping[str, Any], config: Mapping[str, Any], chat: ChatTemplates, tokenizer: TextTokenizer
) -> RankTemplate:
    task = transformer.get("transformer_task", "sequence-classification")
    if task not in TASKS:
        raise UnsupportedModel(f"transformer_task must be one of {', '.join(TASKS)}; got {task!r}")
    name = config.get("default_prompt_name")
    prompt = (config.get("prompts") or {}).get(name) if name else None
    form = (transformer.get("modality_config") or {}).get("message")
    if form is None or chat.default is None:
        return text_pair_template(tokenizer, prompt)
    variables = dict((transformer.get("processing_kwargs") or {}).get("chat_template") or {})
    generation = bool(variables.pop("add_generation_prompt", False))
    variables.pop("restore_suffix", None)
    structured = form.get("format") == "structured"
    return pair_template(chat, tokenizer, PairFormat(None, prompt or None, structured, generation, variables))


def text_pair_template(tokenizer: TextTokenizer, prompt: str | None = None) -> RankTemplate:
    """Query and document as the tokenizer joins two texts, where that is its beginning, the one and the other."""
    for query, document in (("red planet", "Mars is red."), ("a", " b"), ("7", "8 9")):
        joined = tokenizer.encode_pair(query, document)
        if joined != tokenizer.encode_query(query) + tokenizer.encode_item(document):
            raise UnsupportedModel(
                "the tokenizer puts tokens between or after the two texts of a pair, which onepass does not; "
                "give the words to rank by with --template"
            )
    return RankTemplate(context=(prompt or "") + "{query}", item="{document}")


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Kind and folder of each module."""
    try:
        value = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        return [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in value]
    except (ValueError, TypeError, KeyError) as error:
        raise BadCheckpoint(f"modules.json must be a list of objects with type and path; {error}") from error


def _activation(config: Mapping[str, Any], folder: Path, one_score: bool) -> Activation:
    """The stored one; older versions kept it in config.json; without any, sigmoid for one score."""
    model = _json(folder / "config.json")
    older = (model.get("sentence_transformers") or {}).get("activation_fn")
    name = config.get("activation_fn") or older or model.get("sbert_ce_default_activation_function")
    if name is None:
        return "sigmoid" if one_score else "identity"
    kind = str(name).rpartition(".")[2]
    if kind not in ACTIVATION_NAMES:
        raise UnsupportedModel(f"activation_fn must be {' or '.join(ACTIVATION_NAMES)}; got {name!r}")
    return ACTIVATION_NAMES[kind]


def _json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadCheckpoint(f"{path.name} must be a JSON object; {error}") from error
    if not isinstance(value, dict):
        raise BadCheckpoint(f"{path.name} must be a JSON object; got {type(value).__name__}")
    return value
