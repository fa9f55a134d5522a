"""The static files of the page, read once, and the responses that carry them: ETag, media type, security headers.

A view of the page is a module in `static/views`: `index.html` loads every one of them, so that adding a view is adding
a file. What a view gives and gets is described in `static/registry.js`. A folder imports those before it:

    requests/  the API, the history, links, results as text for elsewhere
    forms/     fields, and what they hold as a request
    drawing/   results as tables, heat maps and charts
    views/     a tab each
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from onepass.html_report.page import theme
from onepass.server.http.errors import HttpError

MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # a browser keeps the file and asks whether it is still the same
}
INDEX, THEME = "index.html", "styles/theme.css"
VIEWS_MARK = "<!-- views -->"  # where index.html gets a script element per view


@dataclass(frozen=True)
class StaticFile:
    body: bytes
    media_type: str

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'


class PageFiles:
    """Every file of the page by its path under `/page/`, and `index.html`, which is served at `/`."""

    def __init__(self) -> None:
        texts = dict(_texts(files("onepass.server.page") / "static", ""))
        texts[THEME] = theme()
        texts[INDEX] = _with_views(texts[INDEX], texts)
        self._files = {
            path: StaticFile(text.encode(), MEDIA_TYPES[path.rpartition(".")[2]]) for path, text in texts.items()
        }
        self._etags = {path: file.etag for path, file in self._files.items()}

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self._files)

    def index(self, request: Request) -> Response:
        return self._response(INDEX, request, {"Vary": "Accept"})

    def file(self, request: Request) -> Response:
        path = request.path_params["file"]
        if path == INDEX or path not in self._files:
            raise HttpError(404, "not_found", "the page has no such file; GET / is the page")
        return self._response(path, request, {})

    def _response(self, path: str, request: Request, more: Mapping[str, str]) -> Response:
        file, etag = self._files[path], self._etags[path]
        headers = {**HEADERS, **more, "ETag": etag}
        if _matches(request.headers.get("if-none-match", ""), etag):
            return Response(status_code=304, headers=headers)
        return Response(file.body, media_type=file.media_type, headers=headers)


def _texts(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _texts(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in MEDIA_TYPES:
            yield prefix + entry.name, entry.read_text(encoding="utf-8")


def _with_views(index: str, texts: Mapping[str, str]) -> str:
    """Module scripts run in the order of the document: the views register themselves, then `app.js` starts."""
    views = [path for path in texts if path.startswith("views/") and path.endswith(".js")]
    return index.replace(
        VIEWS_MARK, "\n    ".join(f'<script type="module" src="page/{path}"></script>' for path in views)
    )


def _matches(header: str, etag: str) -> bool:
    """If-None-Match compares weakly: a proxy that compresses puts W/ before the ETag."""
    given = [value.strip().removeprefix("W/") for value in header.split(",")]
    return etag in given or given == ["*"]
