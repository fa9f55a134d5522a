"""Documents and queries of BEIR, TSV and TREC files, plain and gzipped; what is broken is named with its line."""

import gzip
from pathlib import Path

import pytest

from onepass.errors import RequestError
from onepass.evaluate.text_records import read_documents, read_queries

TREC_DOCUMENTS = """<DOC>
<DOCNO> FT-1 </DOCNO>
<HEADLINE>Rain</HEADLINE>
<TEXT>
a &amp; b,
if x < y
</TEXT>
</DOC>
<doc><docno>2</docno>plain text</doc>
"""
TREC_TOPICS = """<top>
<num> Number: 301
<title> International Organized Crime

<desc> Description:
Identify organizations.
</top>
<top><num>302</num><title>
polio &amp; more
</title></top>
"""
XML_TOPICS = (
    '<topics>\n<topic number="1"><query>corona virus</query><question>what?</question></topic>\n'
    "<topic number='2'><query>masks</query></topic><topic number=3><title>rain</title></topic></topics>\n"
)


def write(folder: Path, text: str, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def documents(path: Path) -> dict[str, str]:
    return {record.id: record.text for record in read_documents(path)}


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_beir_documents_have_title_and_text(tmp_path: Path, name: str) -> None:
    text = '{"_id": "a", "title": "Fox", "text": "jumps"}\n\n{"_id": 7, "title": "", "text": "x\\ny"}\n'
    text += '{"id": "c", "contents": ""}'
    assert documents(write(tmp_path, text, name)) == {"a": "Fox jumps", "7": "x\ny", "c": ""}


def test_trec_documents(tmp_path: Path) -> None:
    assert documents(write(tmp_path, TREC_DOCUMENTS)) == {"FT-1": "Rain a & b, if x < y", "2": "plain text"}


def test_tsv(tmp_path: Path) -> None:
    assert read_queries(write(tmp_path, "1\twhat is it\r\n2\tx\ty\n")) == {"1": "what is it", "2": "x y"}


def test_trec_topics_and_their_fields(tmp_path: Path) -> None:
    path = write(tmp_path, TREC_TOPICS)
    assert read_queries(path) == {"301": "International Organized Crime", "302": "polio & more"}
    with pytest.raises(RequestError, match="line 8: the topic has no <desc>"):
        read_queries(path, "desc")
    path = write(tmp_path, TREC_TOPICS.split("<top><num>302")[0])
    assert read_queries(path, "desc") == {"301": "Identify organizations."}


def test_xml_topics(tmp_path: Path) -> None:
    path = write(tmp_path, XML_TOPICS)
    assert read_queries(path) == {"1": "corona virus", "2": "masks", "3": "rain"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"_id": "a", "text": "x"}\n{"_id": "b", ', "line 2: not JSON"),
        ('{"_id": "a", "text": "x"}\n[1]', "line 2: must be a JSON object"),
        ('{"text": "x"}', r"line 1: must have an id \(_id, id or docid\); it has text"),
        ('{"_id": true, "text": "x"}', "line 1: must have an id"),
        ('{"_id": "a", "title": "x"}', "line 1: must have a text; it has _id, title"),
        ('{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}', "line 2: the id 'a' occurs twice"),
        ("a\tx\nno tab here", "line 2: must be an id, a tab and a text"),
        ("<DOC>\n<TEXT>x</TEXT></DOC>", "line 1: a <DOC> must have a <DOCNO>"),
        ("<DOC><DOCNO>1</DOCNO>x</DOC>\n<DOC>\n<DOCNO>2</DOCNO>", "line 2: the element is not closed"),
        ("<html>\n</html>", "has no <DOC>"),
        (" \n", "is empty"),
    ],
)
def test_a_broken_record_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        documents(write(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"cannot read .*missing: No such file"):
        documents(tmp_path / "missing")
    (tmp_path / "latin").write_bytes("1\tx\n2\tcafé".encode("latin-1"))
    with pytest.raises(RequestError, match="line 2: must be UTF-8"):
        documents(tmp_path / "latin")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"".join(b"%d\tx\n" % n for n in range(999)))[:-12])
    with pytest.raises(RequestError, match=r"cannot read .*cut\.gz"):
        documents(tmp_path / "cut.gz")
    with pytest.raises(RequestError, match="--topic-field is for TREC topics"):
        read_queries(write(tmp_path, "1\tx\n"), "title")
