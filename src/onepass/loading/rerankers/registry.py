"""The registry of rerankers that ship no file on how they are read: prompt and read-out by a part of the model's name.

A model's own files come first (`method`); tests compare every entry with transformers (`tests/parity`).
"""

from collections.abc import Mapping

from onepass.loading.rerankers.readouts import ExpectedValue, LogitDifference, SingleLogit
from onepass.loading.rerankers.templates import Ranker, RankTemplate

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

LB_RERANKER = RankTemplate(
    context=(
        "<|im_start|>system\nGiven a query and a piece of text, output a score of 1-7 based on how related the query "
        "is to the text. 1 means least related and 7 is most related.<|im_end|>\n<|im_start|>user\n"
        "<<<Query>>>\n{query}\n\n"
    ),
    item="<<<Context>>>\n{document}<|im_end|>\n<|im_start|>assistant\n",
    labels=tuple("1234567"),
    readout=ExpectedValue((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)),
)

# Parts of model names, and how those models are asked.
KNOWN_RERANKERS: Mapping[str, RankTemplate] = {
    "qwen3-reranker": QWEN3_RERANKER,
    "mxbai-rerank-base-v2": MXBAI_RERANK_V2,
    "mxbai-rerank-large-v2": MXBAI_RERANK_V2,
    "zerank-": ZERANK,
    "ctxl-rerank-v2": CTXL_RERANK_V2,
    "lb-reranker": LB_RERANKER,
}


def ranker_for(model_name: str) -> Ranker:
    """By name alone. Rerankers are trained to say yes or no; plain base and chat models rank far better by
    likelihood."""
    name = model_name.lower()
    known = next((template for part, template in KNOWN_RERANKERS.items() if part in name), None)
    return Ranker("likelihood") if known is None else Ranker("label", label=known)
