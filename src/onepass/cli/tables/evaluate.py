"""The tables of `onepass evaluate`: systems by metric with their intervals, and differences between them."""

from typing import TYPE_CHECKING

from onepass.cli.terminal.output import console

if TYPE_CHECKING:
    from onepass.evaluate.report import Report


def print_report(report: "Report") -> None:
    from rich import box
    from rich.table import Table

    from onepass.evaluate.report import summary

    out, evaluation = console(), report.evaluation
    names = [str(metric) for metric in evaluation.options.metrics]
    systems = Table(box=box.SIMPLE_HEAD)
    for heading in ("metric", *(system.name for system in report.systems)):
        systems.add_column(heading, justify="left" if heading == "metric" else "right", overflow="fold")
    intervals = report.intervals()
    for name in names:
        cells = [f"{i[name].mean:.4f} ({i[name].low:.4f} to {i[name].high:.4f})" for i in intervals]
        systems.add_row(name, *cells)
    out.print(systems)
    for comparison in report.comparisons():
        table = Table(
            box=box.SIMPLE_HEAD, title=f"{comparison.system} against {comparison.baseline}", title_justify="left"
        )
        for heading in ("metric", "difference", "interval", "p", "wins", "losses", "ties"):
            table.add_column(heading, justify="left" if heading == "metric" else "right", no_wrap=True)
        for name in names:
            d = comparison.metrics[name]
            counts = (f"{count:,}" for count in (d.wins, d.losses, d.ties))
            table.add_row(name, f"{d.mean:+.4f}", f"{d.low:+.4f} to {d.high:+.4f}", d.shown_p_value, *counts)
        out.print(table)
    bootstrap, depth, collection = evaluation.options.bootstrap, evaluation.options.depth, evaluation.collection
    facts = [
        f"{len(collection.queries):,} queries, {collection.num_documents:,} documents, depth {depth}",
        f"{bootstrap.confidence:.0%} intervals of {bootstrap.samples:,} resamples, seed {bootstrap.seed}",
        *(f"{system.name} took {system.seconds:,.1f} s" for system in report.systems if system.seconds is not None),
    ]
    out.print(" · ".join(facts), soft_wrap=True)
    out.print(summary(report), soft_wrap=True)
