"""llama-index's rerankers for Text Embeddings Inference and for Jina, as postprocessors of retrieved nodes."""

from typing import Any

from asking import Task, try_clients
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.jinaai_rerank import JinaRerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference


def tei(task: Task) -> dict[str, Any]:
    return processed(TextEmbeddingInference(base_url=task.url, top_n=3, auth_token=task.key), task)


def tei_bearer(task: Task) -> dict[str, Any]:
    return processed(TextEmbeddingInference(base_url=task.url, top_n=3, auth_token=f"Bearer {task.key}"), task)


def jina(task: Task) -> dict[str, Any]:
    return processed(JinaRerank(base_url=f"{task.url}/v1", top_n=3, model=task.model, api_key=task.key), task)


def processed(reranker: BaseNodePostprocessor, task: Task) -> dict[str, Any]:
    nodes = [
        NodeWithScore(node=TextNode(id_=str(index), text=text), score=0.5) for index, text in enumerate(task.documents)
    ]
    kept = reranker.postprocess_nodes(nodes, query_str=task.query)
    return {
        "ranked": [[int(one.node.node_id), one.score] for one in kept],
        "documents": [one.node.get_content() for one in kept],
    }


if __name__ == "__main__":
    try_clients({"tei": lambda: tei, "tei with Bearer": lambda: tei_bearer, "jina": lambda: jina})
