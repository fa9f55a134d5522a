"""What `score` and `rank` share: open a model, check requests by its tokenizer, load its weights, score with progress.

Nothing of JAX is imported before the requests are known to be right.
"""

import argparse
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from onepass.api import ScoreRequest, ScoreResult
from onepass.cli.inputs.requests import FailedRow, RequestRow
from onepass.cli.parser import DEFAULT_MODEL
from onepass.cli.terminal.progress import progress_bars
from onepass.errors import RequestError

if TYPE_CHECKING:
    from onepass.engine.encoding.encode import Encoder
    from onepass.loading.model import Model
    from onepass.loading.tensor_reader import Progress
    from onepass.scorer import Scorer

POLL_SECONDS = 0.1
COMPILE_SECONDS = 1.0


def open_model_of(args: argparse.Namespace) -> "Model":
    """Its configuration and tokenizer; the files are fetched where that is needed."""
    from onepass.loading.model import open_model
    from onepass.loading.source import SourceOptions

    with progress_bars(args.quiet) as progress:
        options = SourceOptions(args.revision, args.offline, args.cache_dir, progress=progress, adapter=args.adapter)
        return open_model(args.model or DEFAULT_MODEL, options)


def check_request(model: "Model", request: ScoreRequest) -> None:
    """Raises what the engine would raise, without the engine."""
    _encoder(model).encode(request)


def checked_rows(model: "Model", rows: Iterator[RequestRow | FailedRow]) -> Iterator[RequestRow | FailedRow]:
    """The rows; up to the first that is right, those that the engine would refuse have failed. The rest is left to the
    engine, which encodes every row anyway."""
    encoder = _encoder(model)
    for row in rows:
        checked = _checked(encoder, row)
        yield checked
        if isinstance(checked, RequestRow):
            break
    yield from rows


def _checked(encoder: "Encoder", row: RequestRow | FailedRow) -> RequestRow | FailedRow:
    try:
        if isinstance(row, RequestRow):
            encoder.encode(row.request)
        return row
    except RequestError as error:
        assert isinstance(row, RequestRow)
        return row.failed(error)


def _encoder(model: "Model") -> "Encoder":
    from onepass.engine.encoding.encode import Encoder

    return Encoder(model.tokenizer, model.config.vocab_size, model.config.max_position, model.chat, model.class_head)


def load_scorer(args: argparse.Namespace, model: "Model") -> "Scorer":
    from onepass.scorer import Scorer

    with progress_bars(args.quiet) as progress:
        return Scorer.load(
            model,
            dtype=args.dtype,
            template=getattr(args, "template", None),
            calibration=getattr(args, "calibration", "auto"),
            progress=progress,
            tp=args.tp,
            dp=args.dp,
            quantize=args.quantize,
            quantize_activations=args.quantize_activations,
        )


def score_one(args: argparse.Namespace, scorer: "Scorer", request: ScoreRequest) -> ScoreResult:
    """One request, with its items and the programs that are compiled for it as progress."""
    with progress_bars(args.quiet) as progress:
        total = 1 if isinstance(request.items, str) else len(request.items)
        done = 0

        def on_items(first: int, last: int, read: object) -> None:
            nonlocal done
            done += last - first
            progress("items", done, total)

        return wait_for(scorer, scorer.engine.submit(request, on_items), progress)


def wait_for(scorer: "Scorer", future: "Future[ScoreResult]", progress: "Progress") -> ScoreResult:
    """The result; a program that takes long to compile meanwhile is shown, one that is read from disk is not."""
    polls = 0
    while True:
        try:
            result = future.result(POLL_SECONDS)
        except TimeoutError:
            if future.done():
                return future.result()
            polls = polls + 1 if scorer.engine.runner.compiling else 0
            if polls * POLL_SECONDS > COMPILE_SECONDS:
                progress("compile", 0, 0)
        else:
            if polls * POLL_SECONDS > COMPILE_SECONDS:
                progress("compile", 1, 1)
            return result
