"""A collection's files together: what is evaluated, what is counted as odd, and what is refused as a whole."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evaluate.small_collection import DOCUMENTS, QRELS, QUERIES, text_of, write_beir, write_run
from onepass.errors import RequestError
from onepass.evaluate.collection import CollectionFiles, open_collection
from onepass.evaluate.evaluation import prepare


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_beir(tmp_path / "beir")


def add(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


def test_a_sound_collection_has_no_warnings(folder: Path) -> None:
    collection = open_collection(CollectionFiles.of_beir(folder, "test"))
    assert collection.warnings == ()
    assert collection.documents == {ident: text_of(ident) for ident in DOCUMENTS}
    assert collection.queries == QUERIES
    assert collection.qrels == QRELS


def test_a_run_keeps_only_the_texts_of_its_documents(folder: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ["d3", "d1"])
    collection = open_collection(CollectionFiles.of_beir(folder, "test", run))
    assert collection.documents.keys() == {"d1", "d3"}
    assert collection.num_documents == len(DOCUMENTS)
    assert collection.run is not None
    assert [document.id for document in collection.run["q4"]] == ["d3", "d1"]


def test_single_oddities_are_counted_with_the_first(folder: Path, tmp_path: Path) -> None:
    qrels = folder / "qrels" / "test.tsv"
    for line in ("q1\tlost\t1", "q9\td1\t1", "q5\td1\t1", "q6\td1\t0", "q7\td1\t1"):
        add(qrels, line)
    for row in ({"_id": "q5", "text": "  "}, {"_id": "q6", "text": "no answer"}, {"_id": "q7", "text": "no candidate"}):
        add(folder / "queries.jsonl", json.dumps(row))
    run = write_run(tmp_path / "run")
    add(run, "q1 Q0 gone 9 1 t")
    add(run, "q6 Q0 d1 9 1 t")
    evaluation = prepare(open_collection(CollectionFiles.of_beir(folder, "test", run)))
    assert [warning.replace(str(tmp_path), "") for warning in evaluation.warnings] == [
        "1 of 8 judged queries are not in /beir/queries.jsonl (the first: 'q9'); they are not evaluated",
        "1 of 7 queries of /beir/queries.jsonl are empty (the first: 'q5'); they are not evaluated",
        "1 of 7 judged documents of /beir/qrels/test.tsv are not in /beir/corpus.jsonl (the first: 'lost'); they count "
        "as not retrieved",
        "1 of 7 candidates of /run are not in /beir/corpus.jsonl (the first: 'gone'); they are left out",
        "1 of 6 queries have no relevant document (the first: 'q6'); they count 0, as in trec_eval",
        "1 of 6 queries have no candidate (the first: 'q7'); they count 0",
    ]
    assert list(evaluation.collection.queries) == ["q1", "q2", "q3", "q4", "q6", "q7"]
    assert evaluation.first_stage.queries[-1].values == (0,) * 5
    recall = evaluation.first_stage.queries[0].values[-1]
    assert recall == pytest.approx(2 / 3), "the lost document is relevant all the same"


def test_files_that_belong_to_different_collections_are_refused(folder: Path, tmp_path: Path) -> None:
    files = CollectionFiles.of_beir(folder, "test")
    other = tmp_path / "other"
    other.write_text("x1 0 d1 1\n")
    with pytest.raises(RequestError, match=r"no query of .* \(the first: 'q1'\) is judged in .* \(the first: 'x1'\)"):
        open_collection(replace(files, qrels=other))
    other.write_text("q1 0 x1 1\nq2 0 x2 1\n")
    with pytest.raises(RequestError, match=r"none of the judged documents of .* is in .*'x1'"):
        open_collection(replace(files, qrels=other))
    other.write_text("q1 Q0 x1 1 1 t\n")
    with pytest.raises(RequestError, match="none of the candidates of"):
        open_collection(replace(files, run=other))
    other.write_text("q1\t \nq2\t\n")
    with pytest.raises(RequestError, match=r"every judged query of .* is empty"):
        open_collection(replace(files, queries=other))


def test_an_unknown_split_lists_those_there_are(folder: Path) -> None:
    with pytest.raises(RequestError, match=r"has no qrels/dev.tsv; its splits: test"):
        CollectionFiles.of_beir(folder, "dev")


def test_max_queries_takes_the_first_in_the_files_order(folder: Path) -> None:
    collection = open_collection(CollectionFiles.of_beir(folder, "test"), 2)
    assert list(collection.queries) == ["q1", "q2"]
