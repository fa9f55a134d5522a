"""`onepass calibrate MODEL F.jsonl`: fits temperatures and position biases to labelled questions, and stores them.

Asks the model every question, fits per question type with held-out folds, prints the errors before and after, writes a
page with reliability curves, and keeps the fit where `onepass decide` and `onepass serve` find it.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.cli.inputs.rows import called, read_text
from onepass.cli.inputs.score_options import add_computing
from onepass.cli.parser import Subcommands, add_json, add_quiet, add_source_options
from onepass.cli.scoring import load_scorer, open_model_of
from onepass.cli.terminal.output import console, print_json
from onepass.cli.terminal.progress import progress_bars
from onepass.cli.types import positive
from onepass.errors import RequestError

if TYPE_CHECKING:
    from onepass.decisions.fit import Example, Fit
    from onepass.decisions.questions import Question, QuestionType
    from onepass.scorer import Scorer

USAGE = "onepass calibrate MODEL F.jsonl [--report F.html] [--out F.json] [OPTION ...]"
DESCRIPTION = """\
Fits a calibration to questions with known answers. A line of the file has a state, a question and its answer:

  {"state": "My card was charged twice.", "question": {"type": "predicate", "instructions": "Urgent?"}, "answer": true}
  {"state": "...", "question": {"type": "choice", "instructions": "Which team?", "choices": ["billing", "shipping"]},
   "answer": "billing"}
  {"state": "...", "question": {"type": "score", "instructions": "How upset?", "levels": ["calm", "mad"]}, "answer": 1}

The fit is stored by the model's name, and every later answer that uses it names it. What is printed was measured on
folds that the fit had not seen."""
AT_ONCE = 64


@dataclass(frozen=True)
class LabelledQuestion:
    state: Any
    question: "Question"
    truth: int


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "calibrate", help="fit decisions to labelled questions", usage=USAGE, description=DESCRIPTION
    )
    parser.add_argument("model", metavar="MODEL", help="bundled name, folder, .gguf file or org/name on the hub")
    parser.add_argument("file", metavar="F.jsonl", help="labelled questions, one JSON object per line; - is stdin")
    group = parser.add_argument_group("fitting")
    group.add_argument("--folds", metavar="N", type=positive, default=5, help="held-out folds (default: 5)")
    add_computing(group)
    add_source_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--out", metavar="F", type=Path, help="store the fit here instead of the user's data folder")
    group.add_argument("--report", metavar="F", type=Path, help="write a page with reliability curves here")
    add_json(group)
    add_quiet(group)
    parser.set_defaults(run=run, calibration="none")


def run(args: argparse.Namespace) -> int:
    from onepass.decisions.calibration import Calibration, digest
    from onepass.decisions.calibration_report import calibration_page
    from onepass.decisions.calibration_store import save_calibration, stored_path

    if args.folds < 2:
        raise RequestError("invalid_folds", f"--folds must be at least 2; got {args.folds}", "folds")
    questions = list(read_labelled(args.file))
    model = open_model_of(args)
    with load_scorer(args, model) as scorer:
        fits, left_out = _fits(_examples(scorer, questions, args.quiet), args.folds)
    types = {kind: fit.calibration for kind, fit in fits.items()}
    fitted: dict[str, Any] = {
        kind: {"before": fit.before.to_dict(), "after": fit.after.to_dict()} for kind, fit in fits.items()
    }
    calibration = Calibration(f"{model.name}@{digest(types)}", types, model.name, fitted)
    path = args.out or stored_path(model.name)
    save_calibration(calibration, path)
    if args.report is not None:
        args.report.write_text(calibration_page(calibration, fits), encoding="utf-8")
    if args.json:
        print_json({**calibration.to_dict(), "left_out": left_out})
    else:
        _print(calibration.name, fits, left_out, path, args.report)
    return 0


def read_labelled(name: str) -> Iterator[LabelledQuestion]:
    for number, line in enumerate(read_text(name, "file").splitlines(), start=1):
        if line.strip():
            yield _labelled(line, f"{called(name)}, line {number}")


def _labelled(line: str, where: str) -> LabelledQuestion:
    from onepass.decisions.question_format import questions_of

    try:
        value = json.loads(line)
    except ValueError as error:
        raise RequestError("invalid_json", f"{where}: must be a JSON object; {error}", "file") from error
    if not isinstance(value, dict) or not {"state", "question", "answer"} <= value.keys():
        raise RequestError("invalid_row", f"{where}: must have state, question and answer", "file")
    try:
        (question,) = questions_of([value["question"]])
    except RequestError as error:
        raise RequestError(error.code, f"{where}: {error}", "file") from error
    return LabelledQuestion(value["state"], question, _truth(question, value["answer"], where))


def _truth(question: "Question", answer: Any, where: str) -> int:
    """An option's value; of a score also the level's number."""
    values = [option.value for option in question.options]
    matching = [i for i, value in enumerate(values) if type(value) is type(answer) and value == answer]
    if matching:
        return matching[0]
    if question.type == "score" and isinstance(answer, int) and 0 <= answer < len(values):
        return answer
    raise RequestError("invalid_answer", f"{where}: answer must be one of {values[:12]}; got {answer!r}", "file")


def _examples(scorer: "Scorer", questions: list[LabelledQuestion], quiet: bool) -> "dict[QuestionType, list[Example]]":
    """Logits in the order in which the options stood; several requests at a time share the device's steps."""
    from onepass.decisions.fit import Example
    from onepass.decisions.questions import DecisionRequest

    out: dict[QuestionType, list[Example]] = {}
    with progress_bars(quiet) as progress:
        for first in range(0, len(questions), AT_ONCE):
            some = questions[first : first + AT_ONCE]
            plans = [scorer.decider.plan(DecisionRequest(state=one.state, questions=(one.question,))) for one in some]
            results = scorer.score_many([plan.score_request for plan in plans])
            for one, result in zip(some, results, strict=True):
                out.setdefault(one.question.type, []).append(Example(tuple(result.logits[0]), one.truth))
            progress("questions", first + len(some), len(questions))
    return out


def _fits(
    examples: "dict[QuestionType, list[Example]]", folds: int
) -> "tuple[dict[QuestionType, Fit], dict[QuestionType, int]]":
    """A fit per type that has enough examples, and how many the others have."""
    from onepass.decisions.fit import MIN_EXAMPLES, fit_with_folds

    fits = {kind: fit_with_folds(own, folds) for kind, own in examples.items() if len(own) >= MIN_EXAMPLES}
    left_out = {kind: len(own) for kind, own in examples.items() if len(own) < MIN_EXAMPLES}
    if not fits:
        counts = ", ".join(f"{count} of type {kind}" for kind, count in left_out.items()) or "none"
        raise RequestError(
            "too_few_examples",
            f"a fit needs at least {MIN_EXAMPLES} labelled questions of a type; got {counts}",
            "file",
        )
    return fits, left_out


def _print(
    name: str, fits: "dict[QuestionType, Fit]", left_out: "dict[QuestionType, int]", path: Path, report: Path | None
) -> None:
    from rich import box
    from rich.table import Table

    out, table = console(), Table(box=box.SIMPLE_HEAD)
    for heading in ("type", "questions", "temperature", "ECE", "Brier", "log-loss", "accuracy"):
        table.add_column(heading, justify="left" if heading == "type" else "right", no_wrap=True)
    for kind, fit in fits.items():
        pairs = [(getattr(fit.before, n), getattr(fit.after, n)) for n in ("ece", "brier", "log_loss", "accuracy")]
        cells = [f"{before:.4f} → {after:.4f}" for before, after in pairs]
        table.add_row(kind, str(fit.before.count), f"{fit.calibration.temperature:.3f}", *cells)
    out.print(table)
    for kind, count in left_out.items():
        out.print(f"{kind}: {count} questions are too few for a fit; its probabilities stay the model's own")
    out.print(f"stored {name} in {path}", soft_wrap=True)
    if report is not None:
        out.print(f"curves in {report}", soft_wrap=True)
