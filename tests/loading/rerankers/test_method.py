"""How a model ranks is taken from its own files, then from its name; a reranker that tells nothing is refused."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onepass.engine.ranking import chosen_method, ranking_request
from onepass.errors import RequestError
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.model import open_model
from onepass.loading.rerankers.method import ranker_of_model
from onepass.loading.rerankers.readouts import ClassHead, LabelProbability, LinearHead, LogitDifference, SingleLogit
from onepass.loading.rerankers.registry import (
    CTXL_RERANK_V2,
    KNOWN_RERANKERS,
    LB_RERANKER,
    MXBAI_RERANK_V2,
    QWEN3_RERANKER,
    ZERANK,
    ranker_for,
)
from onepass.loading.rerankers.templates import LIKELIHOOD, Ranker, ranker_from_dict, ranker_to_dict
from onepass.loading.tokenizer import TextTokenizer
from reference.cross_encoders import INSTRUCTION, PAIR_TEMPLATE

PAIR = ChatTemplates({"default": PAIR_TEMPLATE})


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Callable[[str], Path]) -> TextTokenizer:
    """Its "yes" and "no" are single tokens only with a space before them."""
    return TextTokenizer.from_file(checkpoint("qwen3") / "tokenizer.json")


def cross_encoder(checkpoint: Path, folder: Path, **changes: Any) -> Path:
    """A folder as sentence-transformers writes it; `changes` are files by name, None takes one away."""
    shutil.copytree(checkpoint, folder)
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
            {"idx": 1, "name": "1", "path": "1_LogitScore", "type": "a.logit_score.LogitScore"},
        ],
        "logit_score": {"true_token_id": 5, "false_token_id": 17},
        "sentence_bert_config.json": {
            "transformer_task": "text-generation",
            "modality_config": {"message": {"format": "flat"}},
        },
        "config_sentence_transformers.json": {
            "model_type": "CrossEncoder",
            "activation_fn": "torch.nn.modules.activation.Sigmoid",
            "prompts": {},
            "default_prompt_name": None,
        },
        **{name.replace("_json", ".json"): value for name, value in changes.items()},
    }
    (folder / "1_LogitScore").mkdir()
    (folder / "chat_template.jinja").write_text(PAIR_TEMPLATE)
    for name, value in files.items():
        path = folder / ("1_LogitScore/config.json" if name == "logit_score" else name)
        path.write_text(json.dumps(value))
    return folder


def test_the_standard_files_are_read(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    ranker = open_model(str(cross_encoder(checkpoint("qwen3"), tmp_path / "any-name"))).ranker
    assert (ranker.method, ranker.problem) == ("label", "")
    template = ranker.label
    assert (template.label_token_ids, template.readout) == ((5, 17), LogitDifference("sigmoid"))
    assert template.instruction == INSTRUCTION
    words = template.fill("Q?", None)
    assert (words.context + words.item("D")).endswith(
        f"<Instruct>: {INSTRUCTION}\n<Query>: Q?\n<Document>: D<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n"
    )
    assert "Q?" in words.context, "the query is shared by all documents"
    assert "<Instruct>: Be strict\n" in template.fill("Q?", "Be strict").context
    request, _ = ranking_request(ranker, "auto", "Q?", ["D"])
    assert (request.label_token_ids, request.labels, request.add_special_tokens) == ((5, 17), None, False)


def test_one_token_and_its_activation(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    config = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
    folder = cross_encoder(
        checkpoint("qwen3"),
        tmp_path / "m",
        logit_score={"true_token_id": 9, "false_token_id": None},
        config_sentence_transformers_json=config,
    )
    label = open_model(str(folder)).ranker.label
    assert (label.label_token_ids, label.readout) == ((9,), SingleLogit(1.0, "identity"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config_sentence_transformers_json": {"activation_fn": "torch.nn.Tanh"}}, "must be Sigmoid or Identity"),
        ({"sentence_bert_config_json": {"transformer_task": "fill-mask"}}, "transformer_task must be one of"),
        ({"modules_json": [{"type": "a.Dense", "path": "2_Dense"}]}, "modules.json has Dense; supported"),
    ],
)
def test_what_is_not_computed_is_a_problem_of_ranking(
    checkpoint: Callable[[str], Path], tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    ranker = open_model(str(cross_encoder(checkpoint("qwen3"), tmp_path / "m", **changes))).ranker
    assert words in ranker.problem
    assert "--template" in ranker.problem


def test_a_chat_template_for_pairs_needs_no_other_file(tokenizer: TextTokenizer) -> None:
    head = ClassHead.of(["LABEL_0"], None)
    ranker = ranker_of_model("some-model", None, PAIR, tokenizer, head)
    assert ranker.label.readout == LinearHead(0, "sigmoid")
    assert (ranker.label.context + ranker.label.item).startswith("<|im_start|>system\nJudge.")
    assert "<Query>: {query}\n" in ranker.label.context
    assert "yes and no are not single tokens" in ranker_of_model("some-model", None, PAIR, tokenizer, None).problem


def test_llama_cpps_template_named_rerank_is_read(tokenizer: TextTokenizer) -> None:
    chat = ChatTemplates({"default": "{{ messages }}", "rerank": "<|im_start|>\nQ: {query}\nD: {document}<|im_end|>\n"})
    ranker = ranker_of_model("some-model", None, chat, tokenizer, ClassHead.of(["yes", "no"], None))
    assert ranker.label.readout == LinearHead(0, "softmax")
    assert ranker.label.context + ranker.label.item == chat.sources["rerank"]


def test_plain_chat_templates_are_not_taken_for_rerankers(checkpoint: Callable[[str], Path]) -> None:
    model = open_model(str(checkpoint("qwen3")))
    assert model.chat.default is not None
    assert model.ranker == Ranker("likelihood")


@pytest.mark.parametrize("name", ["acme/Super-Reranker-7B", "cross-encoder/tiny", "my-rerank-v3"])
def test_a_reranker_that_tells_nothing_is_refused(tokenizer: TextTokenizer, name: str) -> None:
    ranker = ranker_of_model(name, None, ChatTemplates(), tokenizer, None)
    with pytest.raises(RequestError, match=r"tells how .*--template FILE .*--rank-by likelihood"):
        chosen_method(ranker, "auto")
    assert chosen_method(ranker, "likelihood") == "likelihood", "who insists gets it"
    assert chosen_method(replace(ranker, problem=""), "auto") == "likelihood"


def test_a_card_that_says_reranker_counts(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\npipeline_tag: text-ranking\n---\n# A model\n")
    assert ranker_of_model("plain", tmp_path, ChatTemplates(), tokenizer, None).problem != ""
    (tmp_path / "README.md").write_text("# A model\nWe compare with a reranker.\n")
    assert ranker_of_model("plain", tmp_path, ChatTemplates(), tokenizer, None) == Ranker("likelihood")


@pytest.mark.parametrize(
    ("name", "template", "prompt"),
    [
        (
            "mixedbread-ai/mxbai-rerank-base-v2",
            MXBAI_RERANK_V2,
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nquery: Q\ndocument: D\nYou are a search relevance expert who evaluates how well "
            "documents match search queries. For each query-document pair, carefully analyze the semantic relationship "
            "between them, then provide your binary relevance judgment (0 for not relevant, 1 for relevant).\n"
            "Relevance:<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "zeroentropy/zerank-1-small",
            ZERANK,
            "<|im_start|>system\nQ<|im_end|>\n<|im_start|>user\nD<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "ContextualAI/ctxl-rerank-v2-instruct-multilingual-2b",
            CTXL_RERANK_V2,
            "Check whether a given document contains information helpful to answer the query.\n"
            "<Document> D\n<Query> Q ??",
        ),
        (
            "lightblue/lb-reranker-0.5B-v1.0",
            LB_RERANKER,
            "<|im_start|>system\nGiven a query and a piece of text, output a score of 1-7 based on how related the "
            "query is to the text. 1 means least related and 7 is most related.<|im_end|>\n<|im_start|>user\n"
            "<<<Query>>>\nQ\n\n"
            "<<<Context>>>\nD<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
def test_known_rerankers_are_asked_in_their_own_words(name: str, template: Any, prompt: str) -> None:
    ranker = ranker_for(name)
    assert ranker.label == template
    words = ranker.label.fill("Q", None)
    assert words.context + words.item("D") == prompt


def test_an_instruction_takes_its_place_in_known_rerankers() -> None:
    zerank, ctxl = ZERANK.fill("Q", "I"), CTXL_RERANK_V2.fill("Q", "I")
    assert zerank.context == "<|im_start|>system\n<query>Q</query>\n<instruction>I</instruction><|im_end|>\n"
    assert ctxl.item("D").endswith("<Query> Q I ??")
    assert (ZERANK.readout, CTXL_RERANK_V2.readout) == (SingleLogit(5.0, "sigmoid"), SingleLogit())
    assert QWEN3_RERANKER.readout == LabelProbability()


def test_texts_with_braces_are_left_alone() -> None:
    words = CTXL_RERANK_V2.fill("{document} {instruction}", None)
    assert words.item("{query}") == "<Document> {query}\n<Query> {document} {instruction} ??"


@pytest.mark.parametrize("template", [*KNOWN_RERANKERS.values(), LIKELIHOOD])
def test_a_ranker_survives_json(template: Any) -> None:
    ranker = Ranker("label", label=template, problem="p")
    assert ranker_from_dict(json.loads(json.dumps(ranker_to_dict(ranker)))) == ranker
