"""One result as a table for people: the query, a row per item, the labels' probabilities, the best of them, and how.

Items keep the order they came in unless a label to sort by is given. Continuations are a table of their own.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onepass.api import Continuation, ScoreRequest, ScoreResult, shorten, text_of
from onepass.cli.terminal.label_mass import count
from onepass.cli.terminal.output import console

if TYPE_CHECKING:
    from rich.table import Table

QUERY_WIDTH, ITEM_WIDTH = 100, 60


@dataclass(frozen=True)
class TableOptions:
    """`sort` is the place of a label (or of a continuation, where there are no labels); `top` alone sorts by the first.
    `ids` are the items'."""

    top: int | None = None
    sort: int | None = None
    verbose: bool = False
    ids: list[Any] | None = None

    @property
    def column(self) -> int | None:
        return 0 if self.sort is None and self.top is not None else self.sort


def best_first(result: ScoreResult, column: int = 0) -> list[tuple[int, float]]:
    """Each item's index and what it is sorted by: one of its labels, or of its continuations where it has no labels.
    Items that tie keep their order."""
    if result.continuations is not None and not any(result.scores):
        values = [row[column].logprob for row in result.continuations]
    else:
        values = [row[column] for row in result.scores]
    return sorted(enumerate(values), key=lambda pair: -pair[1])


def option_probabilities(row: list[Continuation]) -> list[float]:
    """Of each text among the texts of its item: their probabilities, made to sum to 1."""
    highest = max(one.logprob for one in row)
    weights = [math.exp(one.logprob - highest) for one in row]
    return [weight / sum(weights) for weight in weights]


def continuation_texts(request: ScoreRequest, item: int) -> list[str]:
    """The texts of an item's continuations; of token ids, how many they are."""
    texts: Any = request.continuations or ()
    own = texts[item] if texts and not isinstance(texts[0], str) and _holds_texts(texts[0]) else texts
    return [text_of(own, place) for place in range(len(own))]


def _holds_texts(entry: Any) -> bool:
    return len(entry) > 0 and (isinstance(entry[0], str) or not isinstance(entry[0], int))


def print_result(request: ScoreRequest, result: ScoreResult, options: TableOptions) -> None:
    out = console()
    out.print(f"\nquery  {shorten(_in_words(request), QUERY_WIDTH)}", soft_wrap=True)
    order = [i for i, _ in best_first(result, options.column)] if options.column is not None else range(len(result))
    shown = list(order)[: options.top]
    if options.column is not None and len(result):
        out.print(f"sorted by {_sorted_by(request, result, options.column)}", soft_wrap=True)
    if any(result.scores) or result.continuations is None:
        out.print(_label_table(result, shown, options))
    if result.continuations is not None:
        out.print(_continuation_table(request, result.continuations, shown, options, result))
    hidden = len(result) - len(shown)
    out.print(f"{f'{count(hidden, "more item")} · ' if hidden > 0 else ''}{_how(result)}", soft_wrap=True)
    if options.verbose:
        out.print(f"why {result.mode}: {result.reason}", soft_wrap=True, style="dim")


def _sorted_by(request: ScoreRequest, result: ScoreResult, column: int) -> str:
    if any(result.scores):
        return quoted(result.labels[0][column])
    return f"log P of {quoted(continuation_texts(request, 0)[column])}"


def _new_table(options: TableOptions) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    if options.column is not None:
        table.add_column("rank", justify="right")
    if options.ids is not None:
        table.add_column("id", no_wrap=True)
    table.add_column("item", overflow="ellipsis", no_wrap=True)
    return table


def _first_cells(result: ScoreResult, rank: int, item: int, options: TableOptions) -> list[str]:
    place = [str(rank)] if options.column is not None else []
    ident = [str(options.ids[item])] if options.ids is not None else []
    return [*place, *ident, shorten(text_of(result.items, item), ITEM_WIDTH) or "(empty)"]


def _label_table(result: ScoreResult, shown: list[int], options: TableOptions) -> "Table":
    same_labels = all(row == result.labels[0] for row in result.labels)
    names = result.labels[0] if same_labels and result.labels else []
    headings = [quoted(label) for label in names] or ["labels"]
    several = any(len(row) > 1 for row in result.labels)
    table = _new_table(options)
    for heading in [*headings, *(["best"] if several else []), *(["label mass"] if result.label_mass else [])]:
        table.add_column(heading, justify="right", no_wrap=True)
    for rank, i in enumerate(shown, start=1):
        scores = [_probability(score) for score in result.scores[i]]
        if not same_labels:
            pairs = zip(map(quoted, result.labels[i]), scores, strict=True)
            scores = ["  ".join(f"{name} {score}" for name, score in pairs)]
        best = [quoted(result.best(i) or "")] if several else []
        mass = [_probability(result.label_mass[i])] if result.label_mass else []
        table.add_row(*_first_cells(result, rank, i, options), *scores, *best, *mass)
    return table


def _continuation_table(
    request: ScoreRequest,
    continuations: list[list[Continuation]],
    shown: list[int],
    options: TableOptions,
    result: ScoreResult,
) -> "Table":
    """A row per text; the item stands on the first of its texts, and the likeliest text is marked."""
    table = _new_table(options)
    table.add_column("continuation", overflow="ellipsis", no_wrap=True)
    for heading in ("log P", "mean", "P among them", "best"):
        table.add_column(heading, justify="right", no_wrap=True)
    for rank, i in enumerate(shown, start=1):
        first = _first_cells(result, rank, i, options)
        row, texts = continuations[i], continuation_texts(request, i)
        shares = option_probabilities(row)
        for place, (text, one, share) in enumerate(zip(texts, row, shares, strict=True)):
            cells = first if place == 0 else [""] * len(first)
            best = "*" if share == max(shares) else ""
            numbers = (f"{one.logprob:.3f}", f"{one.mean_logprob:.3f}", _probability(share), best)
            table.add_row(*cells, quoted(shorten(text, ITEM_WIDTH) if len(text) > ITEM_WIDTH else text), *numbers)
    return table


def _how(result: ScoreResult) -> str:
    usage, timings = result.usage, result.timings
    return (
        f"{result.model} · mode {result.mode} · {timings.total_ms:,.0f} ms "
        f"(device {timings.device_ms:,.0f} ms) · {usage.prompt_tokens:,} tokens, {usage.computed_tokens:,} computed"
    )


def _probability(value: float) -> str:
    """Four places, unless that would make a small number zero."""
    return f"{value:.4f}" if value >= 0.0001 or value == 0 else f"{value:.1e}"


def quoted(label: str) -> str:
    """Labels often begin with a space, which only quotes show."""
    return '"' + label.replace("\n", "\\n") + '"'


def _in_words(request: ScoreRequest) -> str:
    if request.messages is not None:
        return f"{count(len(request.messages), 'message')} by the model's chat template"
    return request.query if isinstance(request.query, str) else f"{request.query}"
