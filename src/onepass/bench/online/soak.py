"""What a soak must show: the verdicts on what was measured under load and under overload, and the page that tells them.

Measuring is benchmarks/soak.py. A verdict that a run was too short for is not judged, and says so.
"""

from dataclasses import dataclass
from typing import Any

MEMORY_GROWTH_LIMIT = 10e6  # bytes a minute; a leak of that size is a gigabyte in two hours
MINUTES_TO_JUDGE_MEMORY = 5.0
LIVE_P99_MS = 50.0


@dataclass(frozen=True)
class Verdict:
    what: str
    holds: bool | None  # None: not judged
    found: str


def judge(minutes: float, load: dict[str, Any], overload: dict[str, Any]) -> list[Verdict]:
    failed = {name: _failed(part["statuses"]) for name, part in (("load", load), ("overload", overload))}
    wrong = load["wrong"] + overload["wrong"]
    growth = load["memory"]["front_growth_per_minute"] + load["memory"]["engine_growth_per_minute"]
    limit = 5 * load["unloaded_ms"]["p99"] + load["longest_step_ms"]
    share = overload["tokens_per_second"] / overload["peak_tokens_per_second"]
    refused, silent = overload["statuses"].get("429", 0), overload["without_retry_after"]
    again = overload["recovered_ms"]["p50"] / overload["unloaded_ms"]["p50"]
    long_enough = minutes >= MINUTES_TO_JUDGE_MEMORY
    return [
        Verdict("no wrong answer", wrong == 0, f"{wrong} of {load['answered'] + overload['answered']}"),
        Verdict("no 5xx, no broken connection", not any(failed.values()), str(failed)),
        Verdict(
            f"p99 of /live <= {LIVE_P99_MS:g} ms beside {load['hostile']['clients']} hostile clients",
            load["live_ms"]["p99"] <= LIVE_P99_MS,
            f"p50 {load['live_ms']['p50']:.1f}, p99 {load['live_ms']['p99']:.1f}, max {load['live_ms']['max']:.0f} ms",
        ),
        Verdict(
            "hostile clients are answered as they must be",
            load["hostile"]["unexpected"] == 0,
            str(load["hostile"]["statuses"]),
        ),
        Verdict("no other error under load", load["num_errors"] == 0, f"{load['num_errors']}: {load['errors'][:2]}"),
        Verdict(
            "nothing compiled from the first request on", load["compilations"] == 0, f"{load['compilations']} programs"
        ),
        Verdict(
            f"memory grows by at most {MEMORY_GROWTH_LIMIT / 1e6:g} MB a minute",
            growth <= MEMORY_GROWTH_LIMIT if long_enough else None,
            f"{growth / 1e6:+.2f} MB a minute" + ("" if long_enough else "; too short to judge"),
        ),
        Verdict(
            "p99 of small requests <= 5 x unloaded + one step",
            load["small_ms"]["p99"] <= limit,
            f"{load['small_ms']['p99']:.0f} ms; {limit:.0f} = 5 x {load['unloaded_ms']['p99']:.0f} "
            f"+ {load['longest_step_ms']:.0f} ms",
        ),
        Verdict(
            "overload is refused with 429 and Retry-After", refused > 0 and not silent, f"{refused}, {silent} without"
        ),
        Verdict("goodput under overload >= 80 % of peak", share >= 0.8, f"{share:.0%} of the tokens a second"),
        Verdict("latency is back within 2 x after 10 s", again <= 2, f"{again:.2f} x the median before"),
    ]


def markdown(document: dict[str, Any]) -> str:
    load, over, memory = document["load"], document["overload"], document["load"]["memory"]
    mark = {True: "holds", False: "**FAILS**", None: "not judged"}
    lines = [
        f"# Soak of {document['model']} ({document['dtype']}), {document['date']}", "",
        f"`{document['command']}`", "", f"Commit {document['commit']}; {document['hardware']['device']}, "
        f"{document['hardware']['cores']} cores.", "", "| verdict | | found |", "|---|---|---|",
        *(f"| {v['what']} | {mark[v['holds']]} | {v['found']} |" for v in document["verdicts"]), "",
        f"Under load: {load['answered']:,} answers to {document['clients']} clients in {load['seconds']:.0f} s, "
        f"{load['items_per_second']:.1f} items/s, {load['tokens_per_second']:.0f} tokens/s, largest difference "
        f"{load['most_difference']:.1e}, {load['compilations']} programs compiled, client at {load['client_cpu']:.0%}.",
        *(f"Memory of the {name}: {memory[f'{name}_bytes'] / 1e6:.0f} MB, "
          f"{memory[f'{name}_growth_per_minute'] / 1e6:+.2f} MB a minute." for name in ("front", "engine")),
        f"Overload: {over['offered_per_second']:.1f} requests/s offered, {over['requests_per_second']:.1f} answered, "
        f"statuses {over['statuses']}.",
    ]  # fmt: skip
    return "\n".join(lines)


def _failed(statuses: dict[str, int]) -> int:
    """Answers that were the server's fault, or never came."""
    return sum(count for status, count in statuses.items() if status == "none" or status.startswith("5"))
