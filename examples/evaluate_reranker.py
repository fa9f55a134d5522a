"""Evaluating a reranker: nDCG and MRR on a small judged collection, beside the first stage, with intervals."""

from onepass import Scorer
from onepass.evaluate.collection import Collection
from onepass.evaluate.evaluation import EvaluationOptions, SystemResult, prepare
from onepass.evaluate.metrics import Metric
from onepass.evaluate.report import Report, summary
from onepass.evaluate.reranker import Reranker
from onepass.evaluate.trec_files import ranked

DOCUMENTS = {
    "moon": "The Moon pulls the oceans towards it, and the water rises and falls twice a day.",
    "yeast": "Yeast eats sugar and gives off carbon dioxide, so that the dough rises.",
    "autumn": "Leaves lose their green chlorophyll in autumn and turn yellow and red.",
    "rust": "Iron combines with oxygen and water and turns into rust.",
}
QUERIES = {"q1": "what causes the tides", "q2": "why does bread dough get bigger", "q3": "what makes metal rust"}
QRELS = {"q1": {"moon": 1}, "q2": {"yeast": 1}, "q3": {"rust": 1}}  # grades of relevance
first_stage = ranked({name: -place for place, name in enumerate(DOCUMENTS)})  # the same order for every query

options = EvaluationOptions(metrics=(Metric("ndcg", 3), Metric("mrr")))
collection = Collection(DOCUMENTS, QUERIES, QRELS, dict.fromkeys(QUERIES, first_stage), len(DOCUMENTS), ())
evaluation = prepare(collection, options, "first stage")
with Scorer.load("smollm2-135m", dtype="float32") as scorer:
    queries = evaluation.rerank(Reranker.of_scorer(scorer))
report = Report(evaluation, [evaluation.first_stage, SystemResult("smollm2-135m", options.metrics, queries)])

for system, intervals in zip(report.systems, report.intervals(), strict=True):
    for metric, interval in intervals.items():
        print(f"{system.name:12}  {metric:6}  {interval.mean:.3f} ({interval.low:.3f} to {interval.high:.3f})")
print(summary(report))
