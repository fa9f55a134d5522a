"""What front and engine process say to one another, as frames: calls one way, answers and news the other.

front → engine   start · score · prefill · find · close · modes · cancel · ping
engine → front   progress · ready · refused · part · answer · context · modes · error · pong

Frames themselves are `ipc`; who says what when is `worker` and `process`.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from onepass.api import ScoreRequest, Timings, Usage
from onepass.engine.encoding.encode import Encoded
from onepass.engine.encoding.ids import Ids, int_array, joined
from onepass.engine.readout import ReadOut, RunInfo
from onepass.errors import (
    ContextNotFound,
    DoesNotFit,
    EngineUnavailable,
    OnepassError,
    RequestError,
    TooLong,
)
from onepass.ipc import Frame
from onepass.trace import Trace


@dataclass(frozen=True)
class ScoreCall:
    """One request as the engine needs it: ids and options, no text."""

    encoded: Encoded
    tenant: str
    priority: int
    handle: str | None = None
    in_parts: bool = False  # tell what is read out as steps finish


def score_frame(number: int, call: ScoreCall) -> Frame:
    encoded, request = call.encoded, call.encoded.request
    shared = len(set(map(id, encoded.labels))) == 1  # one set for all, as is usual: sent once
    shared_texts = len(set(map(id, encoded.continuations))) == 1
    texts = encoded.continuations[:1] if shared_texts else encoded.continuations
    fields = {
        "tenant": call.tenant,
        "priority": call.priority,
        "handle": call.handle,
        "in_parts": call.in_parts,
        "prompt_tokens": encoded.prompt_tokens,
        "shared_labels": shared,
        "label_sets": len(encoded.labels),
        "shared_continuations": shared_texts,
        "mode": request.mode,
        "apply_softmax": request.apply_softmax,
        "label_mass": request.label_mass,
        "return_trace": request.return_trace,
    }
    arrays = {
        "context": int_array(encoded.context),
        **_lists("items", encoded.items),
        **_lists("branches", encoded.branches),
        **_lists("labels", encoded.labels[:1] if shared else encoded.labels),
        **_lists("continuations", tuple(text for own in texts for text in own)),
        "continuations.counts": np.fromiter(map(len, texts), np.int32, len(texts)),
    }
    return Frame("score", number, fields, arrays)


def modes_frame(call: ScoreCall, repeats: int, chunk_size: int | None) -> Frame:
    """The request of `call` in every mode."""
    score = score_frame(0, call)
    return Frame("modes", 0, {**score.fields, "repeats": repeats, "chunk_size": chunk_size}, score.arrays)


def score_call(frame: Frame) -> ScoreCall:
    fields = frame.fields
    items = _tuples("items", frame)
    labels = _tuples("labels", frame)
    request = ScoreRequest(
        mode=fields["mode"],
        apply_softmax=fields["apply_softmax"],
        label_mass=fields["label_mass"],
        return_trace=fields["return_trace"],
    )
    encoded = Encoded(
        request,
        tuple(frame.arrays["context"].tolist()),
        items,
        labels * fields["label_sets"] if fields["shared_labels"] else labels,
        _continuations(frame, len(items)),
        fields["prompt_tokens"],
        frame.arrays["items"],
        _tuples("branches", frame),
    )
    return ScoreCall(encoded, fields["tenant"], fields["priority"], fields["handle"], fields["in_parts"])


def answer_frame(number: int, read: ReadOut, info: RunInfo) -> Frame:
    fields = {
        "model": info.model,
        "mode": info.mode,
        "reason": info.reason,
        "usage": asdict(info.usage),
        "timings": asdict(info.timings),
        "trace": None if info.trace is None else info.trace.to_dict(),
    }
    return Frame("answer", number, fields, _read_arrays(read))


def answered(frame: Frame) -> tuple[ReadOut, RunInfo]:
    fields = frame.fields
    trace = None if fields["trace"] is None else Trace.from_dict(fields["trace"])
    usage, timings = Usage(**fields["usage"]), Timings(**fields["timings"])
    return read_out(frame), RunInfo(fields["model"], fields["mode"], fields["reason"], usage, timings, trace)


def part_frame(number: int, first: int, last: int, read: ReadOut) -> Frame:
    return Frame("part", number, {"first": first, "last": last}, _read_arrays(read))


def _read_arrays(read: ReadOut) -> dict[str, np.ndarray]:
    best = {} if read.best is None else {"best": read.best.reshape(-1)}
    return {"logits": read.logits, "logsumexp": read.logsumexp, **best}


def read_out(frame: Frame) -> ReadOut:
    best = frame.arrays.get("best")
    return ReadOut(frame.arrays["logits"], frame.arrays["logsumexp"], None if best is None else best.reshape(2, -1))


def error_frame(number: int, error: BaseException) -> Frame:
    """An error by its name in the tree of `errors`; anything else is ours, and its words stay in the engine's log."""
    fields: dict[str, Any] = {"type": "internal", "message": type(error).__name__}
    if isinstance(error, OnepassError):
        fields = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, RequestError):
        fields |= {"code": error.code, "param": error.param}
    return Frame("error", number, fields)


def error_of(frame: Frame) -> Exception:
    fields = frame.fields
    name, message = fields["type"], fields["message"]
    if name == "TooLong":
        return TooLong(message, fields["param"])
    if name == "DoesNotFit":
        return DoesNotFit(message, fields["param"])
    if name == "RequestError":
        return RequestError(fields["code"], message, fields["param"])
    if name == "ContextNotFound":
        return ContextNotFound(message)
    if name == "internal":
        return RuntimeError(f"the engine failed on this request ({message}); its log has the traceback")
    return EngineUnavailable(message)


def _lists(name: str, lists: tuple[Ids, ...]) -> dict[str, np.ndarray]:
    """Lists of ids as their lengths and one flat array."""
    counts = np.fromiter(map(len, lists), np.int32, len(lists))
    return {f"{name}.lengths": counts, name: int_array(joined(lists))}


def _continuations(frame: Frame, num_items: int) -> tuple[tuple[Ids, ...], ...]:
    """One set of texts per item: as many for each as `continuations.counts` says, or one set that all items share."""
    texts = _tuples("continuations", frame)
    ends = np.cumsum(frame.arrays["continuations.counts"]).tolist()
    sets = tuple(texts[first:last] for first, last in zip([0, *ends], ends, strict=False))
    return sets * num_items if frame.fields["shared_continuations"] else sets


def _tuples(name: str, frame: Frame) -> tuple[Ids, ...]:
    flat = frame.arrays[name].tolist()
    ends = np.cumsum(frame.arrays[f"{name}.lengths"]).tolist()
    return tuple(tuple(flat[first:last]) for first, last in zip([0, *ends], ends, strict=False))
