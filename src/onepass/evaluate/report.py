"""The result of an evaluation as one document: metrics of each system with intervals, comparisons, settings, warnings.

`to_dict` is what `onepass evaluate --json` prints; the table is the command's, the page is `report_page`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onepass.evaluate.bootstrap import Interval
from onepass.evaluate.evaluation import Comparison, Evaluation, SystemResult, compare
from onepass.version import VERSION


@dataclass(frozen=True)
class Report:
    """`systems` begin with the first stage. `settings` are what the user chose, ready for JSON."""

    evaluation: Evaluation
    systems: Sequence[SystemResult]
    settings: dict[str, Any] = field(default_factory=dict)

    def intervals(self) -> list[dict[str, Interval]]:
        """Per system, by metric."""
        return [system.intervals(self.evaluation.options.bootstrap) for system in self.systems]

    def pairs(self) -> list[tuple[SystemResult, SystemResult]]:
        """Every reranker with the first stage; of two rerankers also the second with the first."""
        first_stage, *rerankers = self.systems
        return [(system, first_stage) for system in rerankers] + [(system, rerankers[0]) for system in rerankers[1:]]

    def comparisons(self) -> list[Comparison]:
        """Of `pairs`, in their order."""
        bootstrap = self.evaluation.options.bootstrap
        return [compare(system, baseline, bootstrap) for system, baseline in self.pairs()]

    def to_dict(self) -> dict[str, Any]:
        evaluation, options = self.evaluation, self.evaluation.options
        return {
            "object": "evaluation",
            "onepass": VERSION,
            "collection": {
                "queries": len(evaluation.collection.queries),
                "documents": evaluation.collection.num_documents,
                "candidates": sum(map(len, evaluation.candidates.values())),
            },
            "settings": {
                **self.settings,
                "metrics": list(map(str, options.metrics)),
                "depth": options.depth,
                "max_document_words": options.max_document_words,
                "bootstrap_samples": options.bootstrap.samples,
                "confidence": options.bootstrap.confidence,
                "seed": options.bootstrap.seed,
            },
            "systems": [
                {
                    "name": system.name,
                    "metrics": {name: interval.to_dict() for name, interval in intervals.items()},
                    "seconds": system.seconds,
                }
                for system, intervals in zip(self.systems, self.intervals(), strict=True)
            ],
            "comparisons": [comparison.to_dict() for comparison in self.comparisons()],
            "warnings": list(evaluation.warnings),
        }


def summary(report: Report) -> str:
    """What was found, in one sentence, by the first metric."""
    metric = str(report.evaluation.options.metrics[0])
    comparisons = report.comparisons()
    if not comparisons:
        mean = report.intervals()[0][metric].mean
        return f"{report.systems[0].name} has {metric} {mean:.4f}."
    last = comparisons[-1]
    difference = last.metrics[metric]
    sure = "" if difference.low > 0 or difference.high < 0 else "; the interval holds 0"
    verb, over = ("gains", "over") if difference.mean >= 0 else ("loses", "against")
    return (
        f"{last.system} {verb} {abs(difference.mean):.4f} {metric} {over} {last.baseline} "
        f"({difference.low:+.4f} to {difference.high:+.4f}{sure})."
    )
