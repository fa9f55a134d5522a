"""`onepass prompt [MODEL]`: the exact prompts that a request makes, with their tokens; no weights are read.

Options that make up a request are `score_options`; the prompts come from `engine.encoding.encode`, as the engine's do.
"""

import argparse
from typing import TYPE_CHECKING, Any

from onepass.api import Prompt, PromptPart, ScoreRequest
from onepass.cli.parser import Subcommands, add_json, add_quiet, add_source_options
from onepass.cli.terminal.output import print_json

if TYPE_CHECKING:
    from onepass.loading.model import Model

DESCRIPTION = """\
Prints what the model is given: the shared beginning once, then each item, with special tokens written out,
the boundaries, and the token that labels are read at. MODEL comes first.

  onepass prompt Qwen/Qwen3-Reranker-0.6B --rank --query "red planet" --items "Mars is red."
  onepass prompt --messages chat.json --items "Paris" "Rome"
  onepass prompt --query "Review:" --items " I loved it. Sentiment:" """


def add_to(commands: Subcommands) -> None:
    from onepass.cli.inputs.score_options import add_model

    parser = commands.add_parser(
        "prompt",
        help="print the exact prompts of a request",
        usage="onepass prompt [MODEL] (--query Q | --messages F) --items I ... [OPTION ...]",
        description=DESCRIPTION,
    )
    add_model(parser)
    group = parser.add_argument_group("input")
    group.add_argument("--query", metavar="Q", help="the shared context, or with --rank the query")
    group.add_argument("--messages", metavar="F", help="a JSON file with chat messages, in place of a query")
    group.add_argument("--items", metavar="I", nargs="+", required=True, help="the items, or with --rank the documents")
    group.add_argument("--rank", action="store_true", help="in the words that the model is asked to rank with")
    group.add_argument("--instruction", metavar="T", help="with --rank: what relevance means")
    add_template(group)
    add_source_options(parser)
    output = parser.add_argument_group("output")
    add_json(output)
    add_quiet(output)
    parser.set_defaults(run=run)


def add_template(group: "argparse._ActionsContainer") -> None:
    from pathlib import Path

    group.add_argument("--template", type=Path, metavar="F", help="with --rank: TOML with the words to rank by")


def run(args: argparse.Namespace) -> int:
    from onepass.cli.scoring import open_model_of
    from onepass.engine.encoding.encode import Encoder
    from onepass.engine.readout import prompt_of

    _check(args)
    model = open_model_of(args)
    request, readout = _request(args, model)
    limits = (model.config.vocab_size, model.config.max_position)
    encoded = Encoder(model.tokenizer, *limits, model.chat, model.class_head).encode(request)
    prompt = prompt_of(encoded, model.tokenizer)
    if args.json:
        print_json({"object": "prompt", "model": model.name, "readout": readout, **prompt.to_dict()})
    else:
        _print(prompt, model, readout)
    return 0


def _check(args: argparse.Namespace) -> None:
    from onepass.errors import RequestError

    if (args.query is None) == (args.messages is None):
        raise RequestError("invalid_arguments", "give --query or --messages, one of them")
    if not args.rank and (args.instruction is not None or args.template is not None):
        raise RequestError("invalid_arguments", "--instruction and --template are for --rank")


def _request(args: argparse.Namespace, model: "Model") -> tuple[ScoreRequest, dict[str, Any] | None]:
    """The request, and for a ranking what is read at its end."""
    if args.rank:
        from onepass.engine.ranking import RankRequest, score_request
        from onepass.loading.rerankers.readouts import readout_to_dict
        from onepass.loading.rerankers.templates import ranker_from_file

        ranker = model.ranker if args.template is None else ranker_from_file(args.template)
        messages = {} if args.messages is None else _messages(args.messages)
        call = RankRequest(query=args.query, items=args.items, instruction=args.instruction, **messages)
        request, reading = score_request(ranker, call)
        if reading.readout is None:
            return request, {"kind": "likelihood", "continuation": (request.continuations or [""])[0]}
        labels = {"labels": request.labels or request.label_token_ids}
        return request, {**readout_to_dict(reading.readout), **labels}
    read: dict[str, Any] = {} if model.class_head is not None else {"label_token_ids": [0]}
    if args.messages is not None:
        return ScoreRequest(items=args.items, **_messages(args.messages), **read), None
    return ScoreRequest(query=args.query, items=args.items, **read), None


def _messages(path: str) -> dict[str, Any]:
    from onepass.cli.inputs.requests import read_messages

    return read_messages(path)


def _print(prompt: Prompt, model: "Model", readout: dict[str, Any] | None) -> None:
    from onepass.cli.terminal.output import console

    out = console()

    def part(title: str, value: PromptPart) -> None:
        out.print(f"── {title} · {len(value.token_ids)} tokens", style="bold", highlight=False)
        out.print(value.text, markup=False, highlight=False, soft_wrap=True)

    part(f"shared by {len(prompt.items)} items", prompt.shared)
    for number, (item, position) in enumerate(zip(prompt.items, prompt.readout_positions, strict=True)):
        last = (item.token_ids or prompt.shared.token_ids)[-1]
        name = f"<{last}>" if model.tokenizer is None else repr(model.tokenizer.token(last))
        part(f"item {number}, read at token {position} {name} ({last})", item)
    if readout is not None:
        words = ", ".join(f"{key} {value}" for key, value in readout.items())
        out.print(f"── read-out: {words}", style="bold", highlight=False, soft_wrap=True)
