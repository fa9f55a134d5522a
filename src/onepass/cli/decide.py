"""`onepass decide [MODEL]`: typed questions about a state, answered with probabilities, as bars or one JSON document.

The questions are `decisions.question_format`'s, read from YAML or JSON; the numbers come from `decisions.decider`.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.api import shorten
from onepass.cli.inputs.requests import argument
from onepass.cli.inputs.rows import STDIN, called, read_text
from onepass.cli.inputs.score_options import add_computing, add_model, check_one_of, refuse_swallowed_model, wrong
from onepass.cli.parser import Subcommands, add_json, add_quiet, add_source_options
from onepass.cli.scoring import check_request, load_scorer, open_model_of, score_one
from onepass.cli.terminal.output import console, print_json
from onepass.cli.types import positive
from onepass.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Console

    from onepass.decisions.questions import DecisionRequest
    from onepass.decisions.result import DecisionAnswer, DecisionResult

USAGE = """\
onepass decide [MODEL | --url URL] (--state S | --state-file F) (--questions F | --predicates Q ...)
                      [--candidates C ...] [OPTION ...]"""
DESCRIPTION = """\
Asks typed questions about a state and prints the probability of every option; all questions are answered in one
pass. A file of questions has an entry per question, in a list or by name:

  urgent: {type: predicate, instructions: "Is this urgent?"}
  team:
    type: choice
    instructions: Which team should handle it?
    choices: {billing: payments and refunds, shipping: deliveries}
  tone: {type: score, instructions: "How upset is the customer?", levels: [calm, annoyed, furious]}

  onepass decide --state "My card was charged twice." --questions questions.yaml
  onepass decide ./my-model --state-file ticket.json --predicates "Is this urgent?" --permutations 2 --json
  onepass decide --url http://localhost:8000 --state "My card was charged twice." --predicates Late?"""
LOCAL_OPTIONS = ("model", "dtype", "quantize", "quantize_activations", "tp", "dp", "revision", "offline", "cache_dir")
BAR = 30
NAME = 24


def add_to(commands: Subcommands) -> None:
    parser = commands.add_parser(
        "decide", help="answer typed questions about a state", usage=USAGE, description=DESCRIPTION
    )
    add_model(parser)
    group = parser.add_argument_group("input")
    group.add_argument("--state", metavar="S", help="what the questions are about; - reads stdin")
    group.add_argument(
        "--state-file", metavar="F", help="the state from a file; a .json file holds messages or other JSON; - is stdin"
    )
    group.add_argument("--questions", metavar="F", help="questions from a YAML or JSON file; - is stdin")
    group.add_argument("--predicates", metavar="Q", nargs="+", help="yes-no questions, as they are")
    group.add_argument("--candidates", metavar="C", nargs="+", help="ask every question about each of these")
    group = parser.add_argument_group("a running server")
    group.add_argument("--url", metavar="URL", help="ask this server instead of loading a model")
    group.add_argument("--api-key", metavar="KEY", help="of that server")
    group = parser.add_argument_group("deciding")
    group.add_argument(
        "--permutations", metavar="K", type=positive, default=1, help="average over K rotations of the options"
    )
    group.add_argument(
        "--calibration",
        metavar="F",
        default="auto",
        help="auto, none, or a file of onepass calibrate; a server takes auto and none (default: auto)",
    )
    add_computing(group)
    add_source_options(parser)
    group = parser.add_argument_group("output")
    add_json(group)
    add_quiet(group)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    refuse_swallowed_model(args, "decide")
    check_one_of(args, ("state", "state_file"), "")
    check_one_of(args, ("questions", "predicates"), "")
    if STDIN in (args.state, args.state_file) and args.questions == STDIN:
        raise wrong("state and questions cannot both come from stdin")
    if args.url is not None:
        refuse_local_options(args)
    request = _request(args)
    request.check()
    result = _decide(args, request)
    if args.json:
        print_json(result.to_dict())
    else:
        _print(request, result)
    return 0


def _request(args: argparse.Namespace) -> "DecisionRequest":
    from onepass.decisions.question_format import questions_of
    from onepass.decisions.questions import DecisionRequest, Question

    predicates: Any = [Question.predicate(argument(text, "--predicates")) for text in args.predicates or ()]
    candidates = args.candidates and tuple(argument(text, "--candidates") for text in args.candidates)
    return DecisionRequest(
        state=_state(args),
        questions=questions_of(predicates or read_document(args.questions, "questions")),
        candidates=candidates,
        permutations=args.permutations,
        calibrated=args.calibration != "none",
        mode=args.mode or "auto",
    )


def _state(args: argparse.Namespace) -> Any:
    if args.state is not None and args.state != STDIN:
        return argument(args.state, "--state")
    name = STDIN if args.state == STDIN else args.state_file
    text = read_text(name, "state")
    if Path(name).suffix.lower() != ".json":
        return text.removesuffix("\n")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError("invalid_json", f"{name} must be JSON; {error}", "state") from error


def read_document(name: str, param: str) -> Any:
    """YAML, of which JSON is a part."""
    from onepass.cli.inputs.yaml_text import parse_yaml

    return parse_yaml(read_text(name, param), called(name), param)


def refuse_local_options(args: argparse.Namespace) -> None:
    """What says how a model is loaded has no effect on a server that has loaded one."""
    given = [name for name in LOCAL_OPTIONS if getattr(args, name) not in (None, False, "auto")]
    if args.calibration not in ("auto", "none"):
        given.append("calibration")
    if given:
        names = ", ".join("MODEL" if name == "model" else "--" + name.replace("_", "-") for name in given)
        raise RequestError("conflicting_options", f"the server at --url has loaded its model; leave out {names}")


def _decide(args: argparse.Namespace, request: "DecisionRequest") -> "DecisionResult":
    if args.url is not None:
        from onepass.client.blocking import Client

        with Client(args.url, api_key=args.api_key) as client:
            return client.decide(
                request.state,
                request.questions,
                candidates=request.candidates,
                permutations=request.permutations,
                calibrated=request.calibrated,
                mode=request.mode,
            )
    from onepass.decisions.decider import Decider

    model = open_model_of(args)
    decider = Decider(model.tokenizer, model.chat, max_tokens=model.config.max_position)
    check_request(model, decider.plan(request).score_request)
    with load_scorer(args, model) as scorer:
        plan = scorer.decider.plan(request)
        return plan.result(score_one(args, scorer, plan.score_request))


def _print(request: "DecisionRequest", result: "DecisionResult") -> None:
    out = console()
    for row, answers in enumerate(result.answers):
        if result.candidates is not None:
            out.print(f"\ncandidate  {shorten(result.candidates[row], 100)}", soft_wrap=True)
        for question, answer in zip(request.questions, answers, strict=True):
            _print_answer(out, question.instructions, answer)
    calibration = result.calibration or "none"
    out.print(
        f"\n{result.num_reads} reads in one pass, {result.usage.prompt_tokens:,} tokens "
        f"({result.usage.cached_tokens:,} cached), {result.timings.total_ms or 0:,.0f} ms; calibration: {calibration}",
        soft_wrap=True,
    )
    for warning in result.warnings:
        out.print(f"warning: {warning}", soft_wrap=True)


def _print_answer(out: "Console", instructions: str, answer: "DecisionAnswer") -> None:
    shown = {"predicate": f"P(yes) = {answer.probability:.3f}", "score": f"score {answer.score:.2f}"}.get(
        answer.type, str(answer.choice)
    )
    spread = "" if answer.spread is None else f"  spread {answer.spread:.3f}"
    name = "" if answer.name is None else f"{answer.name}: "
    out.print(f"\n{name}{shorten(instructions, 80)}  →  {shown}", soft_wrap=True)
    out.print(f"  confidence {answer.confidence:.3f}  label mass {answer.label_mass:.3f}{spread}", soft_wrap=True)
    names = ["yes", "no"] if answer.type == "predicate" else [str(value) for value in answer.values]
    for text, p in zip(names, answer.probabilities, strict=True):
        filled = round(BAR * p)
        out.print(f"  {shorten(text, NAME):<{NAME}} {p:6.3f} {'█' * filled}{'·' * (BAR - filled)}", soft_wrap=True)
