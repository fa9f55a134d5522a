"""How much a request was, as OpenAI's clients read it; shared by every dialect that tells."""

from collections.abc import Sequence
from typing import Any

from onepass.api import ScoreResult
from onepass.server.schema.fields import COUNT, Schema, answer_schema

USAGE: Schema = answer_schema(
    "Usage",
    {
        "prompt_tokens": {**COUNT, "description": "The query counted once."},
        "total_tokens": COUNT,
        "completion_tokens": {**COUNT, "description": "0; `/generative_scoring` counts one per item, as vLLM does."},
        "prompt_tokens_details": answer_schema("PromptTokensDetails", {"cached_tokens": COUNT}),
    },
)


def usage_of(results: Sequence[ScoreResult], completion_tokens: int = 0) -> dict[str, Any]:
    """Several results where one request was several to the engine. `completion_tokens`: for dialects that count what a
    score is read from as a generated token."""
    prompt = sum(result.usage.prompt_tokens for result in results)
    cached = sum(result.usage.cached_tokens for result in results)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
