"""Documents and queries of a collection as files have them: BEIR's JSONL, TSV, and TREC's SGML or XML; also gzipped.

The kind of a file is its first character: `{` is JSONL, `<` is TREC, anything else is TSV (id, tab, text). A record
that cannot be read is a RequestError that names file and line. Relevance judgments and runs are `trec_files`.
"""

import gzip
import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from onepass.errors import RequestError

ID_FIELDS = ("_id", "id", "docid", "doc_id", "query_id", "qid")
TEXT_FIELDS = ("text", "contents", "content", "body", "query")
TOPIC_FIELDS = ("query", "title")  # of a TREC topic, the first that it has
TAG = re.compile(r"</?[A-Za-z][^<>]*>")
DOCUMENT_ID = re.compile(r"<(DOCNO|DOCID)>\s*(.*?)\s*</\1>", re.IGNORECASE | re.DOTALL)
TOPIC_NUMBER = re.compile(
    r"""<(?:topic|top)\b[^>]*\bnumber\s*=\s*["']?([^"'\s>]+)|<num>\s*(?:Number:)?\s*([^\s<]+)""", re.I
)
TOPIC_FIELD = re.compile(r"<([A-Za-z]+)[^>]*>\s*(?:(?:Topic|Description|Narrative):)?\s*([^<]*)")


@dataclass(frozen=True)
class TextRecord:
    """A document or a query. `where` is its file and line, for messages."""

    id: str
    text: str
    where: str


def read_documents(path: Path) -> Iterator[TextRecord]:
    """One at a time, so that a corpus may be larger than memory. The same id twice is an error."""
    kind = _first_character(path)
    records = _documents_sgml(path) if kind == "<" else _json_records(path) if kind == "{" else _tsv_records(path)
    return _distinct(records)


def read_queries(path: Path, topic_field: str | None = None) -> dict[str, str]:
    """Texts by id, in the file's order. `topic_field` is a field of TREC topics: title, desc, narr."""
    kind = _first_character(path)
    if kind != "<" and topic_field is not None:
        raise RequestError("invalid_queries", f"--topic-field is for TREC topics; {path} has none", "queries")
    records = _topics(path, topic_field) if kind == "<" else _json_records(path) if kind == "{" else _tsv_records(path)
    return {record.id: record.text for record in _distinct(records)}


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1, decoded; blank ones too."""
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise RequestError("invalid_text", f"{path}, line {number}: must be UTF-8; {error}") from error
    except (OSError, EOFError) as error:
        raise RequestError(
            "missing_file", f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from error


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _first_character(path: Path) -> str:
    for _, line in lines_of(path):
        if line.strip():
            return line.strip()[0]
    raise RequestError("empty_file", f"{path} is empty")


def _distinct(records: Iterator[TextRecord]) -> Iterator[TextRecord]:
    seen: set[str] = set()
    for record in records:
        if record.id in seen:
            raise RequestError("duplicate_id", f"{record.where}: the id {record.id!r} occurs twice")
        seen.add(record.id)
        yield record


def _json_records(path: Path) -> Iterator[TextRecord]:
    for number, line in lines_of(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RequestError("invalid_json", f"{where}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise RequestError("invalid_record", f"{where}: must be a JSON object with an id and a text")
        yield TextRecord(_json_id(value, where), _json_text(value, where), where)


def _json_id(value: dict[str, Any], where: str) -> str:
    ident = next((value[name] for name in ID_FIELDS if name in value), None)
    if isinstance(ident, bool) or not isinstance(ident, str | int) or ident == "":
        raise RequestError(
            "invalid_record", f"{where}: must have an id (_id, id or docid); it has {', '.join(value) or 'nothing'}"
        )
    return str(ident)


def _json_text(value: dict[str, Any], where: str) -> str:
    """Title and text joined by a space, as BEIR's own readers do."""
    text = next((value[name] for name in TEXT_FIELDS if name in value), None)
    title = value.get("title") or ""
    if not isinstance(text, str) or not isinstance(title, str):
        raise RequestError("invalid_record", f"{where}: must have a text; it has {', '.join(value)}")
    return f"{title} {text}".strip()


def _tsv_records(path: Path) -> Iterator[TextRecord]:
    for number, line in lines_of(path):
        if not line.strip():
            continue
        ident, tab, text = line.partition("\t")
        if not tab or not ident.strip():
            raise RequestError("invalid_record", f"{path}, line {number}: must be an id, a tab and a text")
        yield TextRecord(ident.strip(), " ".join(text.split("\t")).strip(), f"{path}, line {number}")


def _documents_sgml(path: Path) -> Iterator[TextRecord]:
    for number, block in _blocks(path, "doc"):
        where = f"{path}, line {number}"
        ident = DOCUMENT_ID.search(block)
        if ident is None or not ident[2]:
            raise RequestError("invalid_record", f"{where}: a <DOC> must have a <DOCNO>")
        text = html.unescape(TAG.sub(" ", DOCUMENT_ID.sub(" ", block)))
        yield TextRecord(ident[2], " ".join(text.split()), where)


def _topics(path: Path, field: str | None) -> Iterator[TextRecord]:
    for number, block in _blocks(path, "top(?:ic)?"):
        where = f"{path}, line {number}"
        ident = TOPIC_NUMBER.search(block)
        if ident is None:
            raise RequestError("invalid_record", f"{where}: a topic must have a <num> or a number attribute")
        fields = {name.lower(): " ".join(html.unescape(text).split()) for name, text in TOPIC_FIELD.findall(block)}
        wanted = (field,) if field else TOPIC_FIELDS
        name = next((name for name in wanted if name in fields), None)
        if name is None:
            raise RequestError("invalid_record", f"{where}: the topic has no <{'> or <'.join(wanted)}>")
        yield TextRecord(ident[1] or ident[2], fields[name], where)


def _blocks(path: Path, element: str) -> Iterator[tuple[int, str]]:
    """The elements of that name, each with the number of its first line; a line may hold several."""
    begins, ends = re.compile(rf"<{element}\b", re.I), re.compile(rf"</{element}>", re.I)
    first, lines = 0, list[str]()
    for number, line in lines_of(path):
        for part in _parts(line, ends):
            if not lines and begins.search(part):
                first = number
            if lines or begins.search(part):
                lines.append(part)
            if lines and ends.search(part):
                yield first, "\n".join(lines)
                lines = []
    if lines:
        raise RequestError("invalid_record", f"{path}, line {first}: the element is not closed before the file ends")
    if not first:
        raise RequestError("invalid_record", f"{path} has no <DOC>, <top> or <topic> element")


def _parts(line: str, ends: "re.Pattern[str]") -> Iterator[str]:
    """The line in parts that each end with a closing tag, and what is left."""
    start = 0
    for match in ends.finditer(line):
        yield line[start : match.end()]
        start = match.end()
    yield line[start:]
