"""`litellm.rerank` in the forms of the providers whose dialects the server speaks."""

from typing import Any

import litellm
from asking import Rank, Task, try_clients

INFINITY = {"X-Compat": "infinity"}  # its `document` is a string: the body is the same as for hosted_vllm
LIMITS = {"max_tokens_per_doc": 64, "max_tokens_per_query": 32, "truncation_side": "right"}


def main() -> None:
    litellm.suppress_debug_info = True
    try_clients(
        {
            "hosted_vllm": lambda: of("hosted_vllm"),
            "hosted_vllm with limits": lambda: of("hosted_vllm", **LIMITS),
            "jina_ai": lambda: of("jina_ai"),
            "cohere": lambda: of("cohere"),
            "infinity": lambda: of("infinity", headers=INFINITY),
            "infinity by its path": lambda: of("infinity", base="/infinity"),
            "infinity without documents": lambda: of("infinity", return_documents=False),
            "huggingface": lambda: of("huggingface"),
        }
    )


def of(provider: str, base: str = "", **options: Any) -> Rank:
    def rank(task: Task) -> dict[str, Any]:
        answer = litellm.rerank(
            model=f"{provider}/{task.model}",
            query=task.query,
            documents=task.documents,
            top_n=3,
            api_base=task.url + base,
            api_key=task.key,
            **options,
        )
        assert answer.results is not None
        return {
            "ranked": [[one["index"], one["relevance_score"]] for one in answer.results],
            "documents": [(one.get("document") or {}).get("text") for one in answer.results],
            "id": answer.id,
            "meta": answer.meta,
        }

    return rank


if __name__ == "__main__":
    main()
