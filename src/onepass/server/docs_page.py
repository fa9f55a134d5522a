"""`GET /docs`: the OpenAPI document as one HTML page that needs nothing from elsewhere, with a form to try things.

Made once, on the server; the only script sends what the reader typed and shows what came back.
"""

import json
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --dim: #60646c; --line: #e0e1e6; --back: #fcfcfd; --soft: #f0f0f3;
  --post: #0d74ce; --get: #218358; --delete: #ce2c31; }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --dim: #b0b4ba; --line: #363a3f; --back: #111113;
  --soft: #1e2024; --post: #70b8ff; --get: #3dd68c; --delete: #ff9592; } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1.25rem 6rem; max-width: 60rem; background: var(--back); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif }
h1 { margin: 0; font-size: 1.9rem } h2 { margin: 2.5rem 0 .5rem; font-size: 1.15rem }
p { margin: .4rem 0 } .dim { color: var(--dim) } a { color: var(--post) }
code, pre, textarea, .verb, .path { font-family: ui-monospace, SFMono-Regular, Menlo, monospace; font-size: .86rem }
details.op { border: 1px solid var(--line); border-radius: 10px; margin: .5rem 0; background: var(--back) }
details.op > summary { display: flex; gap: .8rem; align-items: baseline; padding: .65rem .9rem; cursor: pointer;
  list-style: none }
details.op > summary::-webkit-details-marker { display: none }
details.op[open] > summary { border-bottom: 1px solid var(--line) }
.inside { padding: .8rem 1rem 1rem; overflow-x: auto }
.verb { font-weight: 700; min-width: 4.2rem } .POST { color: var(--post) } .GET { color: var(--get) }
.DELETE { color: var(--delete) } .path { font-weight: 600; white-space: nowrap }
.what { color: var(--dim); margin-left: auto; text-align: right }
table { border-collapse: collapse; width: 100%; margin: .4rem 0 1rem } td, th { text-align: left; vertical-align: top;
  padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); font-size: .9rem } th { color: var(--dim) }
pre, textarea { background: var(--soft); border: 1px solid var(--line); border-radius: 8px; padding: .7rem; width: 100%;
  color: var(--ink); overflow: auto; max-height: 26rem; margin: .4rem 0; white-space: pre-wrap }
textarea { min-height: 9rem; resize: vertical }
button { font: inherit; padding: .3rem 1.1rem; border-radius: 8px; border: 1px solid var(--post); color: var(--back);
  background: var(--post); cursor: pointer } h3 { font-size: .95rem; margin: 1rem 0 .2rem }
input { font: inherit; padding: .25rem .6rem; border: 1px solid var(--line); border-radius: 8px; color: var(--ink);
  background: var(--soft) }
"""
SCRIPT = """
for (const form of document.querySelectorAll('form')) form.addEventListener('submit', async event => {
  event.preventDefault();
  const out = form.querySelector('output'), area = form.querySelector('textarea');
  const headers = {}, key = document.querySelector('#key').value;
  if (area) headers['content-type'] = 'application/json';
  if (key) headers['authorization'] = 'Bearer ' + key;
  let path = form.dataset.path;
  for (const input of form.querySelectorAll('input[data-part]'))
    path = path.replace('{' + input.dataset.part + '}', encodeURIComponent(input.value));
  out.innerHTML = '<pre>…</pre>';
  const began = performance.now();
  let text;
  try {
    const answer = await fetch(path, {method: form.dataset.method, headers, body: area ? area.value : undefined});
    text = await answer.text();
    try { text = JSON.stringify(JSON.parse(text), null, 2) } catch {}
    text = answer.status + ' in ' + Math.round(performance.now() - began) + ' ms\\n' + text.slice(0, 50000);
  } catch (error) { text = String(error) }
  out.firstChild.textContent = text;
});
"""


def docs_page(document: dict[str, Any]) -> str:
    info = document["info"]
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            group = operation["tags"][0]
            groups.setdefault(group, []).append(_operation(document, path, method.upper(), operation))
    body = "".join(f"<h2>{escape(name)}</h2>{''.join(parts)}" for name, parts in groups.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>onepass API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>{escape(info['title'])} "
        f"<span class=dim>{escape(info['version'])}</span></h1><p>{escape(info['description'])}</p>"
        '<p class=dim>The same for programs: <a href="/openapi.json">openapi.json</a>. API key, if one is needed: '
        f'<input id=key type=password autocomplete=off aria-label="API key"></p>{body}'
        f"<script>{SCRIPT}</script></body></html>"
    )


def _operation(document: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    described = operation.get("description", "")
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    bodies = _alternatives(document, content.get("schema", {}))
    fields = "".join(f"<h3>{escape(body['title'])}</h3>{_members(body)}" for body in bodies if "title" in body)
    answers = "".join(
        f"<tr><td><code>{escape(status)}</code></td><td>{escape(answer['description'])}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    return (
        f'<details class=op><summary><span class="verb {method}">{method}</span><span class=path>{escape(path)}</span>'
        f"<span class=what>{escape(operation['summary'])}</span></summary><div class=inside>"
        f"{f'<p>{escape(described)}</p>' if described else ''}{fields}{_form(path, method, bodies)}"
        f"<h3>Answers</h3><table>{answers}</table></div></details>"
    )


def _form(path: str, method: str, bodies: list[dict[str, Any]]) -> str:
    parts = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    inputs = "".join(f'<p><label>{escape(p)} <input data-part="{escape(p)}" required></label></p>' for p in parts)
    example: Any = next((body["examples"][0] for body in bodies if body.get("examples")), {})
    area = ""
    if bodies:
        shown = escape(json.dumps(example, indent=2, ensure_ascii=False))
        area = f'<textarea spellcheck=false aria-label="body">{shown}</textarea>'
    return (
        f'<h3>Try it</h3><form data-path="{escape(path)}" data-method="{method}">{inputs}{area}'
        "<button>Send</button><output></output></form>"
    )


def _alternatives(document: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    found = [_resolved(document, one) for one in schema.get("anyOf", [schema])]
    return [one for one in found if one.get("properties")]


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = document["components"]["schemas"][name] | {"title": name} if name else schema
    return found


def _members(schema: dict[str, Any]) -> str:
    rows = ""
    for name, member in schema["properties"].items():
        needed = " *" if name in schema.get("required", []) else ""
        rows += (
            f"<tr><td><code>{escape(name)}{needed}</code></td><td class=dim>{escape(_kind(member))}</td>"
            f"<td>{escape(member.get('description', ''))}</td></tr>"
        )
    return f"<table><tr><th>member</th><th>kind</th><th></th></tr>{rows}</table>"


def _kind(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"] if one.get("type") != "null"))
    if "enum" in schema:
        return " | ".join(json.dumps(one) for one in schema["enum"] if one is not None)
    kind = schema.get("type", "object" if "$ref" in schema else "")
    kinds = [kind] if isinstance(kind, str) else kind
    name = " or ".join(one for one in kinds if one != "null")
    return f"list of {_kind(schema['items'])}" if name == "array" and "items" in schema else name
