"""A capacity plan as a person reads it: what fits, how fast, how the chips are divided, which steps run.

The document is `onepass.capacity.estimate`'s; nothing is computed here.
"""

from typing import Any

from onepass.cli.terminal.output import console, in_millions

GIB = 1 << 30
_DIVISIONS = "divisions of the chips, compared by the roofline and the engine's estimates"


def print_plan(document: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = console()
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(document):
        facts.add_row(Text(name, style="bold"), Text(value))
    out.print(facts)
    for heading, rows in ((_DIVISIONS, _divisions(document)), ("steps", _steps(document))):
        if rows:
            table = Table(*rows[0], title=heading, title_justify="left", box=box.SIMPLE_HEAD)
            for row in rows:
                table.add_row(*row.values())
            out.print(table)
    for line in ("assumptions", *(f"  {one}" for one in document["assumptions"])):
        out.print(line, soft_wrap=True)


def plan_page(document: dict[str, Any]) -> str:
    """The same as an HTML page."""
    from html import escape

    from onepass.html_report.page import Cell, Row, report_page, table

    title = f"Plan for {document['model']} on {document['target']['name']}"
    facts = [Row((name, Cell(value))) for name, value in _facts(document)]
    body = [table(("", "what"), facts)]
    for heading, rows in ((_DIVISIONS, _divisions(document)), ("steps", _steps(document))):
        if rows:
            body.append(f"<h2>{heading.capitalize()}</h2>")
            body.append(table(list(rows[0]), [Row(list(row.values())) for row in rows]))
    listed = "".join(f"<li>{escape(one)}</li>" for one in document["assumptions"])
    body.append(f"<h2>Assumptions</h2><ul>{listed}</ul>")
    return report_page(title, _summary(document), body, verdict="good" if document["fits"] else "bad")


def _summary(document: dict[str, Any]) -> str:
    p = document["prediction"]
    rate = "" if p is None else f"; predicted {p['items_per_second']:,.0f} items/s"
    return f"It fits{rate}." if document["fits"] else f"It does not fit: {document['why_not']}."


def _facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    work, target = document["workload"], document["target"]
    return [
        ("model", f"{document['model']}, {in_millions(document['parameters'])} parameters, {document['dtype']}"),
        ("target", f"{target['name']}: {_counted(target['chips'], 'chip')}, {_counted(target['devices'], 'device')}"),
        ("workload", f"{work['name']}: query {work['query_tokens']:,.0f}, {work['items']:,} items, "
                     f"{work['tokens']:,} tokens"),
        ("fits", _fits(document)),
        ("each device", _bytes(document["per_device"])),
        *_limits(document),
        ("division", _division(document["division"])),
        ("mode", f"{document['mode']}: {document['reason']}"),
        ("rungs", f"{', '.join(f'{tokens:,}' for tokens in document['rungs'])} tokens"),
        ("compiled", _compiled(document)),
        *_speed(document),
        *_cost(document),
    ]  # fmt: skip


def _division(document: dict[str, Any]) -> str:
    text = f"tp {document['tp']} × dp {document['dp']}: {document['why']}"
    alone = document["engine_chooses"]
    if alone is not None and alone["tp"] != document["tp"]:
        text += f"; give it to the engine as --tp {document['tp']}, by itself it would take {alone['tp']}"
    return text


def _fits(document: dict[str, Any]) -> str:
    spare = document["per_device"]["spare"] / GIB
    return f"yes, with {spare:.2f} GiB to spare on each device" if document["fits"] else f"no: {document['why_not']}"


def _bytes(sizes: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {sizes[name] / GIB:.2f}" for name in ("weights", "pool", "temporaries", "other"))
    return f"{sizes['total'] / GIB:.2f} of {sizes['available'] / GIB:.2f} GiB: {parts} ({sizes['source']})"


def _limits(document: dict[str, Any]) -> list[tuple[str, str]]:
    limits = document["limits"]
    if limits is None:
        return []
    text = (
        f"context {limits['context_tokens']:,} tokens ({limits['context_limited_by']}); {limits['cached_contexts']:,} "
        f"such queries are cached; a step of {limits['tokens_a_step']:,} tokens takes {limits['items_a_step']:,} "
        "items, a request any number"
    )
    return [("limits", text)]


def _compiled(document: dict[str, Any]) -> str:
    if not document["compiled"]:
        return "not compiled: roofline only"
    names = ", ".join(one["name"] for one in document["programs"])
    return f"{_counted(len(document['programs']), 'program')} in {document['compile_seconds']:.0f} s: {names}"


def _speed(document: dict[str, Any]) -> list[tuple[str, str]]:
    p = document["prediction"]
    if p is None:
        return []
    scheduled = "" if p["scheduled_ms"] is None else f", {p['scheduled_ms']:,.1f} ms by the compiler's schedule"
    return [
        ("predicted", f"{p['items_per_second']:,.0f} items/s, {p['request_ms']:,.1f} ms a request (by {p['basis']})"),
        ("roofline", f"{p['roofline_items_per_second']:,.0f} items/s, {p['roofline_ms']:,.1f} ms a request; "
                     f"{p['at_efficiency_ms']:,.1f} ms at {p['efficiency']:.1%} of it, with padding{scheduled}"),
    ]  # fmt: skip


def _cost(document: dict[str, Any]) -> list[tuple[str, str]]:
    cost = document["cost"]
    if cost is None or cost["per_million_items"] is None:
        return []
    return [("cost", f"{cost['per_million_items']:,.4f} for a million items, {cost['per_hour']:,.2f} an hour")]


def _divisions(document: dict[str, Any]) -> list[dict[str, str]]:
    values = document["division"]["candidates"]
    if len(values) < 2:
        return []
    return [
        {
            "tp × dp": f"{one['tp']} × {one['dp']}",
            "each device": f"{one['bytes_per_device'] / GIB:.2f} GiB",
            "of the best rate": f"{one['relative_rate']:.0%}" if one["fits"] else "does not fit",
        }
        for one in values
    ]


def _steps(document: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "steps": f"{one['count']}",
            "tokens": f"{one['tokens']:,} of {one['rung']:,}",
            "read-outs": f"{one['readouts']:,}",
            "pages": f"{one['pages']:,}",
            "TFLOP": f"{one['flops'] / 1e12:.2f}",
            "GB": f"{one['bytes'] / 1e9:.2f}",
            "sent": f"{one['sent_bytes'] / 1e9:.2f} GB",
            "roofline": f"{one['roofline_ms']:.2f} ms",
        }
        for one in document["steps"]
    ]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
