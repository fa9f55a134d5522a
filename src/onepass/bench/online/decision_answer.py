"""An answer of `/v1/decisions` as the rows, usage and timings of `/v1/score`, so that one window reads both."""

from typing import Any


def as_scores(fields: Any) -> Any:
    """A row of probabilities per question, the candidates' one after another; any other answer stays as it is."""
    if not isinstance(fields, dict) or not isinstance(fields.get("answers"), list):
        return fields
    answers = [answer for row in fields["answers"] for answer in (row if isinstance(row, list) else [row])]
    usage = fields["usage"]
    return {
        "scores": [[option["probability"] for option in answer["probabilities"]] for answer in answers],
        "usage": {
            "prompt_tokens": usage["prompt_tokens"],
            "prompt_tokens_details": {"cached_tokens": usage["cached_tokens"]},
        },
        "timings": fields["timings"],
        "mode": fields["mode"],
    }
