"""`GET /docs`: the served model, requests to begin with, and every operation with a form to try it, as one HTML page.

The page needs nothing from elsewhere. Style and script are `assets`; the first requests are `examples`.
"""

import json
import re
from html import escape
from typing import Any

from onepass.server.docs.assets import SCRIPT, STYLE
from onepass.server.docs.examples import Example, examples
from onepass.server.engines.service import Health, Served
from onepass.server.ready_summary import GIB, ready_summary

HOST = re.compile(r"[A-Za-z0-9.:_\[\]-]{1,255}")


class DocsPage:
    """The part that is the same for every model is made once."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._keys = "security" in document
        self._operations = _operations(document)
        info = document["info"]
        self._title = f"{escape(info['title'])} {escape(info['version'])}"
        self._description = escape(info["description"])

    def render(self, served: Served | None, health: Health, origin: str) -> str:
        """`origin` is this server's address as the reader's browser has it, such as http://localhost:8000."""
        key = (
            "<p class=dim>The forms below need an API key too: "
            '<input id=key type=password autocomplete=off aria-label="API key"></p>'
        )
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>onepass API</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{STYLE}</style></head><body>{_served(served, health, origin)}"
            f"<h2>Begin with these</h2>{''.join(_example(one, origin, self._keys) for one in examples(served))}"
            f"{key if self._keys else ''}{self._operations}<h2>About</h2>"
            f"<p>{self._title}. {self._description} The same for programs: "
            f'<a href="/openapi.json">openapi.json</a>.</p><script>{SCRIPT}</script></body></html>'
        )


def origin_of(scheme: str, host: str) -> str:
    """What a browser sent as its host, if it can be one: the page shows it."""
    return f"{scheme}://{host}" if HOST.fullmatch(host) else f"{scheme}://localhost:8000"


def markdown(text: str) -> str:
    """A description as HTML: code between backticks, and everything else as it is."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _served(served: Served | None, health: Health, origin: str) -> str:
    if served is None:
        return f"<h1>onepass</h1><p>No model is ready yet: {escape(health.reason)}</p>"
    facts = f"up to {served.max_position:,} tokens"
    if "memory" in served.details:
        summary = ready_summary(served, origin)
        facts = (
            f"{summary.dtype} on {summary.device} · {facts} · weights {summary.weights_bytes / GIB:.2f} GiB · "
            f"{summary.programs} programs"
        )
    names = "" if not served.aliases else f"<p>Also served as {markdown(_codes(served.aliases))}.</p>"
    state = "" if health.ready else f"<p>Not ready: {escape(health.reason)}</p>"
    return f"<h1>{escape(served.model)}</h1><p class=dim>{escape(facts)}</p>{names}{state}"


def _codes(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _example(example: Example, origin: str, keys: bool) -> str:
    url = f"<span class=origin>{escape(origin)}</span>{escape(example.path)}"
    command = f"curl {url} {escape(example.arguments(keys), quote=False)}"
    return (
        f"<h3>{escape(example.title)}</h3><p>{markdown(example.explanation)}</p>"
        f"<div class=example><pre>{command}</pre><button type=button data-copy>Copy</button></div>"
    )


def _operations(document: dict[str, Any]) -> str:
    """Every operation under its group; paths that are the same operation are folded into it."""
    aliases: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if "x-alias-of" in operation:
                aliases.setdefault(operation["x-alias-of"], []).append(path)
    groups: dict[str, str] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if "x-alias-of" not in operation:
                shown = _operation(document, path, method.upper(), operation, aliases.get(path, []))
                group = operation["tags"][0]
                groups[group] = groups.get(group, "") + shown
    return "".join(f"<h2>{escape(name)}</h2>{parts}" for name, parts in groups.items())


def _operation(document: dict[str, Any], path: str, method: str, operation: dict[str, Any], aliases: list[str]) -> str:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    bodies = _alternatives(document, content.get("schema", {}))
    described = operation.get("description", "")
    words = [described] if described else []
    words += [f"The same at {_codes(tuple(aliases))}."] if aliases else []
    fields = "".join(
        _folded(f"Members of {body['title']} ({len(body['properties'])})", _members(body))
        for body in bodies
        if "title" in body
    )
    answers = "".join(
        f"<tr><td><code>{escape(status)}</code></td><td>{markdown(answer['description'])}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    return (
        f'<details class=op><summary><span class="verb {method}">{method}</span><span class=path>{escape(path)}</span>'
        f"<span class=what>{markdown(operation['summary'])}</span></summary><div class=inside>"
        f"{''.join(f'<p>{markdown(one)}</p>' for one in words)}{_form(path, method, bodies)}{fields}"
        f"{_folded('Statuses', f'<table>{answers}</table>')}</div></details>"
    )


def _folded(title: str, inner: str) -> str:
    return f"<details><summary>{escape(title)}</summary><div class=scroll>{inner}</div></details>"


def _form(path: str, method: str, bodies: list[dict[str, Any]]) -> str:
    parts = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    inputs = "".join(f'<p><label>{escape(p)} <input data-part="{escape(p)}" required></label></p>' for p in parts)
    example: Any = next((body["examples"][0] for body in bodies if body.get("examples")), {})
    area = ""
    if bodies:
        shown = json.dumps(example, indent=2, ensure_ascii=False)
        rows = shown.count("\n") + 2
        area = f'<textarea spellcheck=false rows={rows} aria-label="body">{escape(shown)}</textarea>'
    return (
        f'<h3>Try it</h3><form data-path="{escape(path)}" data-method="{method}">{inputs}{area}'
        "<button>Send</button><output></output></form>"
    )


def _alternatives(document: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    resolved = [_resolved(document, part) for part in schema.get("anyOf", [schema])]
    return [part for part in resolved if part.get("properties")]


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    resolved: dict[str, Any] = document["components"]["schemas"][name] | {"title": name} if name else schema
    return resolved


def _members(schema: dict[str, Any]) -> str:
    rows = ""
    for name, member in schema["properties"].items():
        needed = " *" if name in schema.get("required", []) else ""
        rows += (
            f"<tr><td><code>{escape(name)}{needed}</code></td><td class=dim>{escape(_kind(member))}</td>"
            f"<td>{markdown(member.get('description', ''))}</td></tr>"
        )
    return f"<table><tr><th>member (* required)</th><th>kind</th><th></th></tr>{rows}</table>"


def _kind(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(part) for part in schema["anyOf"] if part.get("type") != "null"))
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"] if value is not None)
    kind = schema.get("type", "object" if "$ref" in schema else "")
    kinds = [kind] if isinstance(kind, str) else kind
    name = " or ".join(part for part in kinds if part != "null")
    return f"list of {_kind(schema['items'])}" if name == "array" and "items" in schema else name
