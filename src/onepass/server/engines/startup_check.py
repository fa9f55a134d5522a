"""Before serving: is this model the model? Fixed texts against stored reference scores, and against itself.

A model with stored scores must reproduce them; any model must give finite probabilities and the same ones by every
road, and rank documents as its requests will. An engine that fails refuses to serve. The full proof is `onepass
validate`.
"""

import logging
import math
from dataclasses import dataclass

from onepass.api import ScoreRequest, ScoreResult
from onepass.errors import BadCheckpoint, RequestError
from onepass.scorer import Scorer

log = logging.getLogger("onepass.engine")

LABELS = (" Paris", " Rome", " Berlin")
QUERY = "The capital of"
ITEMS = (" France is", " Italy is", " Germany is")
TOLERANCE = {"float32": 2e-3, "bfloat16": 3e-2, "int8": 0.15, "fp8": 0.15}  # another model is off by 0.3 and more
ROADS = {"float32": 1e-4, "bfloat16": 2e-2}


@dataclass(frozen=True)
class Known:
    """P(label | "The capital of" + item), one sequence at a time in float32 (as PyTorch's: tests/parity)."""

    scores: tuple[tuple[float, ...], ...]


KNOWN = {
    "smollm2-135m": Known(
        ((0.77253, 0.00052, 0.00099), (0.00092, 0.38029, 0.00002), (0.00667, 0.00036, 0.79636)),
    ),
}


def self_test(scorer: Scorer) -> None:
    """Raises BadCheckpoint when the scores are not what this model's must be."""
    dtype = str(scorer.weights.embed.dtype)
    packed, serial = (_scored(scorer, mode) for mode in ("packed", "serial"))
    bounded = scorer.model.class_head is None
    for row in packed.scores:
        if not all(math.isfinite(p) and (not bounded or 0.0 <= p <= 1.0) for p in row):
            raise BadCheckpoint(f"{scorer.model.name}: the self-test wants probabilities; got {row}")
    _compare(scorer, "mode packed against serial", packed.scores, serial.scores, ROADS[dtype])
    _check_ranking(scorer)
    known = KNOWN.get(scorer.model.name)
    if known is not None:
        quantize = scorer.kernels.config.quantize
        tolerance = TOLERANCE.get(str(quantize), TOLERANCE[dtype])
        _compare(scorer, "its stored reference scores", packed.scores, known.scores, tolerance)


def _check_ranking(scorer: Scorer) -> None:
    """Every document gets a finite score, by the way that rerank requests take. A model that only scores is served."""
    if scorer.model.tokenizer is None:
        return  # templates are text
    try:
        ranking = scorer.rank(QUERY, [item.strip() for item in ITEMS])
    except RequestError as error:
        log.warning("rerank requests will be refused: %s", error)
        return
    if len(ranking) != len(ITEMS) or not all(math.isfinite(ranked.score) for ranked in ranking):
        scores = [ranked.score for ranked in ranking]
        raise BadCheckpoint(f"{scorer.model.name}: the self-test wants {len(ITEMS)} finite rank scores; got {scores}")


def _scored(scorer: Scorer, mode: str) -> ScoreResult:
    if scorer.model.class_head is not None:
        return scorer.score_many([ScoreRequest(query=QUERY, items=ITEMS, mode=mode)])[0]  # type: ignore[arg-type]
    if scorer.model.tokenizer is None:
        ids = [[1, 2], [3], [4, 5, 6]]
        request = ScoreRequest(query=[7, 8, 9], items=ids, label_token_ids=[0, 1, 2], mode=mode)  # type: ignore[arg-type]
    else:
        encode = scorer.model.tokenizer.encode_item
        labels = list(dict.fromkeys(encode(label)[0] for label in LABELS))
        request = ScoreRequest(query=QUERY, items=ITEMS, label_token_ids=labels, mode=mode)  # type: ignore[arg-type]
    return scorer.score_many([request])[0]


def _compare(scorer: Scorer, what: str, got: object, wanted: object, tolerance: float) -> None:
    rows = zip(got, wanted, strict=True)  # type: ignore[call-overload]
    # A reward is not bounded as probabilities are: beyond 1 the difference is relative.
    worst = max(abs(a - b) / max(1.0, abs(b)) for row, other in rows for a, b in zip(row, other, strict=True))
    if not worst <= tolerance:
        raise BadCheckpoint(
            f"{scorer.model.name}: the self-test wants {what} within {tolerance}; they differ by {worst:.4f}"
        )
