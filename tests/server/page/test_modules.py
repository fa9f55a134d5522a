"""The page's modules form a whole: every import names a file and what it exports, every file is loaded, and a folder
imports only the folders below it."""

import posixpath
import re
from collections.abc import Iterator, Mapping

import pytest
from starlette.testclient import TestClient

from onepass.server.page.files import INDEX, PageFiles

ORDER = ("", "requests", "forms", "drawing", "views")  # each imports those before it
STARTING = ("app.js", "header.js")  # beside index.html, and above all of them
IMPORT = re.compile(r'^import (?:\{([^}]*)\} from )?"([^"]+)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function\*?|class|const|let) (\w+)", re.MULTILINE)
LINKED = re.compile(r'(?:src|href)="page/([^"]+)"')


def problems(texts: Mapping[str, str]) -> Iterator[str]:
    """Of files by their paths under /page/, and index.html as it is served."""
    loaded = set(LINKED.findall(texts[INDEX]))
    yield from (f"index.html links {path}, which is not there" for path in sorted(loaded - set(texts)))
    waiting = sorted(loaded & set(texts))
    while waiting:
        path = waiting.pop()
        for names, target in imports(path, texts[path]):
            if target not in texts:
                yield f"{path} imports {target}, which is not there"
                continue
            missing = names - set(EXPORT.findall(texts[target]))
            yield from (f"{path} imports {name}, which {target} does not export" for name in sorted(missing))
            if rank(target) > rank(path):
                yield f"{path} imports {target}, which is above it"
            if target not in loaded:
                loaded.add(target)
                waiting.append(target)
    yield from (f"nothing loads {path}" for path in sorted(set(texts) - loaded - {INDEX}))


def imports(path: str, text: str) -> list[tuple[set[str], str]]:
    if not path.endswith(".js"):
        return []
    found = IMPORT.findall(text)
    assert len(found) == len(re.findall(r"^import\b|\bimport\(", text, re.MULTILINE)), (
        f"{path}: an import in other words"
    )
    return [
        (
            {name.split(" as ")[0].strip() for name in names.split(",") if name.strip()},
            posixpath.normpath(posixpath.join(posixpath.dirname(path), target)),
        )
        for names, target in found
    ]


def rank(path: str) -> int:
    return len(ORDER) if path in STARTING else ORDER.index(posixpath.dirname(path))


@pytest.fixture
def texts(client: TestClient) -> dict[str, str]:
    index = client.get("/", headers={"Accept": "text/html"}).text
    return {INDEX: index} | {path: client.get(f"/page/{path}").text for path in PageFiles().paths if path != INDEX}


def test_every_module_is_loaded_and_finds_what_it_imports(texts: dict[str, str]) -> None:
    assert list(problems(texts)) == []


@pytest.mark.parametrize(
    ("path", "before", "after", "said"),
    [
        ("views/score.js", '"../dom.js"', '"./dom.js"', "views/score.js imports views/dom.js, which is not there"),
        ("dom.js", "export function h(", "function h(", "header.js imports h, which dom.js does not export"),
        ("index.html", "page/styles/base.css", "page/base.css", "nothing loads styles/base.css"),
        ("index.html", "page/styles/base.css", "page/base.css", "index.html links base.css, which is not there"),
        ("requests/copy.js", '{ h } from "../dom.js"', '{ choice } from "../forms/fields.js"',
         "requests/copy.js imports forms/fields.js, which is above it"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_noticed(texts: dict[str, str], path: str, before: str, after: str, said: str) -> None:
    assert before in texts[path]
    assert said in list(problems({**texts, path: texts[path].replace(before, after)}))


def test_a_file_that_nothing_loads_is_noticed(texts: dict[str, str]) -> None:
    assert list(problems({**texts, "forms/left_over.js": ""})) == ["nothing loads forms/left_over.js"]
