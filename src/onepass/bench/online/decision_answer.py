"""An answer of `/v1/decisions` as the rows, usage and timings of `/v1/score`, so that one window reads both."""

from typing import Any


def as_scores(told: Any) -> Any:
    """A row of probabilities per question, the candidates' one after another; any other answer stays as it is."""
    if not isinstance(told, dict) or not isinstance(told.get("answers"), list):
        return told
    answers = [one for row in told["answers"] for one in (row if isinstance(row, list) else [row])]
    usage = told["usage"]
    return {
        "scores": [[option["probability"] for option in one["probabilities"]] for one in answers],
        "usage": {
            "prompt_tokens": usage["prompt_tokens"],
            "prompt_tokens_details": {"cached_tokens": usage["cached_tokens"]},
        },
        "timings": told["timings"],
        "mode": told["mode"],
    }
