"""A judged collection of a few lines in BEIR's layout, and the same in TREC's, for tests."""

import json
from pathlib import Path

DOCUMENTS = {
    "d1": ("Fox", "The quick brown fox jumps over the lazy dog."),
    "d2": ("", "Water boils at 100 degrees; the fox is away from the river bank."),
    "d3": ("Paris", "The capital of France is Paris, and of Italy it is Rome."),
    "d4": ("", "A user liked the film about a space ship and the sea."),
    "d5": ("Coat", "Please recommend a warm winter jacket or a light rain coat."),
    "d6": ("", "The price of the shoes was 49.90 and the size was 42."),
}
QUERIES = {
    "q1": "where does the fox jump",
    "q2": "capital of France and Italy",
    "q3": "warm jacket for the winter",
    "q4": "price and size of shoes",
}
QRELS = {"q1": {"d1": 2, "d2": 1}, "q2": {"d3": 1, "d4": 0}, "q3": {"d5": 2, "d6": 1}, "q4": {"d6": 1}}


def text_of(document: str) -> str:
    return " ".join(DOCUMENTS[document]).strip()


def write_beir(folder: Path) -> Path:
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": ident, "title": title, "text": text} for ident, (title, text) in DOCUMENTS.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rows = [{"_id": ident, "text": text} for ident, text in QUERIES.items()]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lines = [f"{query}\t{document}\t{grade}" for query, grades in QRELS.items() for document, grade in grades.items()]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


def write_run(path: Path, documents: list[str] | None = None) -> Path:
    """Every document for every query, in one order."""
    ranked = documents or list(DOCUMENTS)
    lines = [f"{query} Q0 {d} {n} {100 - n} first" for query in QUERIES for n, d in enumerate(ranked, start=1)]
    path.write_text("\n".join(lines) + "\n")
    return path
