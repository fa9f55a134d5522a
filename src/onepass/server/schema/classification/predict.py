"""`POST /predict` of Text Embeddings Inference: a text, a pair or a batch in, labels with scores out, best first."""

from typing import Any

from onepass.errors import RequestError, shown
from onepass.server.schema.classification.call import (
    LABELS,
    ClassCall,
    Classified,
    ClassRow,
    Pair,
    Prompt,
    PromptLimit,
    check_count,
    label_list,
)
from onepass.server.schema.fields import (
    MODEL,
    NUMBER,
    PRIORITY,
    TEXT,
    Fields,
    Schema,
    answer_schema,
    body_schema,
    flag,
)
from onepass.server.schema.text_limits import SIDE, TRUNCATED, side_of, truncated_member

SEQUENCE: Schema = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2}
BODY = body_schema(
    "PredictBody",
    {
        "inputs": {
            "anyOf": [TEXT, SEQUENCE, {"type": "array", "items": SEQUENCE, "minItems": 1}],
            "description": "A text, a pair of texts, or a batch: a list of lists of one text or two.",
        },
        "raw_scores": flag("Logits instead of probabilities.", False),
        "truncate": flag("Cut a text to what the model takes; predictions of what was cut say so.", False),
        "truncation_direction": SIDE,
        "labels": LABELS,
        "model": MODEL,
        "priority": PRIORITY,
    },
    ("inputs",),
)
BODY["examples"] = [{"inputs": [["The food was delicious."], ["The room was cold."]], "labels": [" yes", " no"]}]
PREDICTIONS: Schema = {
    "type": "array",
    "items": answer_schema(
        "TeiPrediction", {"score": NUMBER, "label": TEXT, "truncated": TRUNCATED}, optional=("truncated",)
    ),
}
ANSWER: Schema = {
    "title": "TeiPredictions",
    "anyOf": [PREDICTIONS, {"type": "array", "items": PREDICTIONS}],
    "description": "For a batch, one such list per input.",
}


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> ClassCall:
    fields = Fields.of(body, BODY)
    model = fields.model(served_names)
    side = side_of(fields, "truncation_direction")
    prompts, names, single = _inputs(fields.get("inputs"))
    return ClassCall(
        prompts,
        names,
        model,
        fields.priority(priority),
        labels=label_list(fields),
        raw=fields.flag("raw_scores"),
        limit=PromptLimit(None, side) if fields.flag("truncate") else None,
        single=single,
    )


def _inputs(value: Any) -> tuple[tuple[Prompt, ...], tuple[str, ...], bool]:
    if value is None:
        raise RequestError("missing_inputs", "inputs are required: a text, a pair of texts or a batch", "inputs")
    if isinstance(value, str):
        return (value,), ("inputs",), True
    if not isinstance(value, list):
        raise _wrong("inputs", value)
    check_count(value, "inputs")
    if isinstance(value[0], str):
        return (_sequence(value, "inputs"),), ("inputs",), True
    names = tuple(f"inputs[{number}]" for number in range(len(value)))
    return tuple(map(_sequence, value, names)), names, False


def _sequence(value: Any, name: str) -> Prompt:
    if not isinstance(value, list) or not 1 <= len(value) <= 2 or not all(isinstance(text, str) for text in value):
        raise _wrong(name, value)
    return Pair(value[0], value[1]) if len(value) == 2 else str(value[0])


def _wrong(name: str, value: Any) -> RequestError:
    wanted = (
        "a text, a pair of texts, or a batch of lists of one text or two" if name == "inputs" else "one text or two"
    )
    return RequestError("invalid_inputs", f"{name} must be {wanted}; got {shown(value)}", "inputs")


def answer(call: ClassCall, classified: Classified) -> list[Any]:
    rows = [_predictions(row, classified.classes) for row in classified.rows]
    return rows[0] if call.single else rows


def _predictions(row: ClassRow, classes: tuple[str, ...]) -> list[dict[str, Any]]:
    cut = truncated_member(row.truncated)
    pairs = sorted(zip(row.probabilities, classes, strict=True), key=lambda pair: -pair[0])
    return [{"score": score, "label": label} | cut for score, label in pairs]
