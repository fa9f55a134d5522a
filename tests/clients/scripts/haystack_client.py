"""Haystack's rankers of Cohere, Jina and Text Embeddings Inference."""

from typing import Any

from asking import Task, try_clients
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.jina import JinaRanker


def cohere(task: Task) -> dict[str, Any]:
    return ranked(CohereRanker(model=task.model, top_k=3, api_key=secret(task), api_base_url=task.url), task)


def jina(task: Task) -> dict[str, Any]:
    return ranked(JinaRanker(task.model, secret(task), top_k=3, base_url=f"{task.url}/v1/rerank"), task)


def tei(task: Task) -> dict[str, Any]:
    return ranked(HuggingFaceTEIRanker(url=task.url, top_k=3, token=secret(task), max_retries=1), task)


def secret(task: Task) -> Secret:
    return Secret.from_token(task.key)


def ranked(ranker: Any, task: Task) -> dict[str, Any]:
    documents = [Document(content=text, meta={"index": index}) for index, text in enumerate(task.documents)]
    kept = ranker.run(query=task.query, documents=documents)["documents"]
    return {"ranked": [[one.meta["index"], one.score] for one in kept], "documents": [one.content for one in kept]}


if __name__ == "__main__":
    try_clients({"cohere": lambda: cohere, "jina": lambda: jina, "tei": lambda: tei})
