"""One result as a table for people: the query, the items best first, the labels' probabilities, and how it was done.

The order is by the first label's probability; items that tie keep the order they came in.
"""

from typing import TYPE_CHECKING

from onepass.api import ScoreRequest, ScoreResult, shorten, text_of
from onepass.cli.output import console

if TYPE_CHECKING:
    from rich.table import Table

QUERY_WIDTH, ITEM_WIDTH = 100, 60


def best_first(result: ScoreResult) -> list[tuple[int, float]]:
    """Each item's index and what it is ranked by: its first label, or its first continuation where it has no labels."""
    if result.continuations is not None and not any(result.scores):
        values = [row[0].logprob for row in result.continuations]
    else:
        values = [row[0] for row in result.scores]
    return sorted(enumerate(values), key=lambda pair: -pair[1])


def print_result(request: ScoreRequest, result: ScoreResult, top: int | None) -> None:
    out = console()
    out.print(f"\nquery  {shorten(_in_words(request.query), QUERY_WIDTH)}", soft_wrap=True)
    out.print(_table(result, top))
    hidden = len(result.scores) - top if top is not None else 0
    out.print(f"{f'{hidden} more items · ' if hidden > 0 else ''}{_how(result)}", soft_wrap=True)
    out.print(f"why {result.mode}: {result.reason}", soft_wrap=True, style="dim")


def _table(result: ScoreResult, top: int | None) -> "Table":
    from rich import box
    from rich.table import Table

    same_labels = all(row == result.labels[0] for row in result.labels)
    headings = [_quoted(label) for label in result.labels[0]] if same_labels and result.labels else ["labels"]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("rank", justify="right")
    table.add_column("item", overflow="ellipsis", no_wrap=True)
    for heading in [*headings, *_extra_headings(result)]:
        table.add_column(heading, justify="right", no_wrap=True)
    for rank, (i, _) in enumerate(best_first(result)[:top], start=1):
        scores = [_probability(score) for score in result.scores[i]]
        if not same_labels:
            names = map(_quoted, result.labels[i])
            scores = ["  ".join(f"{name} {score}" for name, score in zip(names, scores, strict=True))]
        table.add_row(str(rank), _item(result, i), *scores, *_extra(result, i))
    return table


def _extra_headings(result: ScoreResult) -> list[str]:
    mass = ["label mass"] if result.label_mass is not None and any(result.scores) else []
    return mass + [f"log P {n + 1}" for n in range(len((result.continuations or [[]])[0]))]


def _extra(result: ScoreResult, i: int) -> list[str]:
    mass = [_probability(result.label_mass[i])] if result.label_mass is not None and any(result.scores) else []
    return mass + [f"{c.logprob:.3f}" for c in (result.continuations[i] if result.continuations else ())]


def _item(result: ScoreResult, i: int) -> str:
    return shorten(text_of(result.items, i), ITEM_WIDTH) or "(empty)"


def _how(result: ScoreResult) -> str:
    usage, timings = result.usage, result.timings
    return (
        f"{result.model} · mode {result.mode} · {timings.total_ms:,.0f} ms "
        f"(device {timings.device_ms:,.0f} ms) · {usage.prompt_tokens:,} tokens, {usage.computed_tokens:,} computed"
    )


def _probability(value: float) -> str:
    """Four places, unless that would make a small number zero."""
    return f"{value:.4f}" if value >= 0.0001 or value == 0 else f"{value:.1e}"


def _quoted(label: str) -> str:
    """Labels often begin with a space, which only quotes show."""
    return '"' + label.replace("\n", "\\n") + '"'


def _in_words(query: object) -> str:
    return query if isinstance(query, str) else f"{query}"
