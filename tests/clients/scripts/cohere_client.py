"""Cohere's clients of both versions of its API, and langchain's `CohereRerank`, which wraps the second."""

from typing import Any

import cohere
from asking import Rank, Task, try_clients


def main() -> None:
    try_clients(
        {
            "v1": lambda: version_one,
            "v1 without documents": lambda: version_one_default,
            "v2": lambda: version_two,
            "langchain": langchain,
        }
    )


def version_one(task: Task) -> dict[str, Any]:
    return _version_one(task, return_documents=True)


def version_one_default(task: Task) -> dict[str, Any]:
    """Cohere tells no documents unless asked to."""
    return _version_one(task)


def _version_one(task: Task, **options: Any) -> dict[str, Any]:
    client = cohere.Client(api_key=task.key, base_url=task.url)
    answer = client.rerank(model=task.model, query=task.query, documents=task.documents, **options)
    assert answer.meta is not None
    assert answer.meta.billed_units is not None
    return {
        "ranked": [[one.index, one.relevance_score] for one in answer.results],
        "documents": [one.document.text if one.document else None for one in answer.results],
        "id": answer.id,
        "search_units": answer.meta.billed_units.search_units,
    }


def version_two(task: Task) -> dict[str, Any]:
    client = cohere.ClientV2(api_key=task.key, base_url=task.url)
    answer = client.rerank(
        model=task.model, query=task.query, documents=task.documents, top_n=3, max_tokens_per_doc=512
    )
    return {"ranked": [[one.index, one.relevance_score] for one in answer.results], "id": answer.id}


def langchain() -> Rank:
    from langchain_cohere import CohereRerank
    from langchain_core.documents import Document

    def rank(task: Task) -> dict[str, Any]:
        compressor = CohereRerank(model=task.model, cohere_api_key=task.key, base_url=task.url, top_n=3)
        documents = [Document(text, metadata={"index": index}) for index, text in enumerate(task.documents)]
        kept = compressor.compress_documents(documents, task.query)
        return {
            "ranked": [[one.metadata["index"], one.metadata["relevance_score"]] for one in kept],
            "documents": [one.page_content for one in kept],
        }

    return rank


if __name__ == "__main__":
    main()
