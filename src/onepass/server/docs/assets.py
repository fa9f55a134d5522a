"""The style sheet and the script of /docs, and the policy that lets a browser run these two and nothing else."""

import base64
import hashlib

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --dim: #60646c; --line: #e0e1e6; --back: #fcfcfd; --soft: #f0f0f3;
  --post: #0d74ce; --get: #218358; --delete: #ce2c31 }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --dim: #b0b4ba; --line: #363a3f; --back: #111113;
  --soft: #1e2024; --post: #70b8ff; --get: #3dd68c; --delete: #ff9592 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1.25rem 6rem; max-width: 60rem; background: var(--back); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif }
h1 { margin: 0; font-size: 1.9rem; overflow-wrap: anywhere } h2 { margin: 2.5rem 0 .5rem; font-size: 1.2rem }
h3 { font-size: .95rem; margin: 1.1rem 0 .3rem } p { margin: .4rem 0 } .dim { color: var(--dim) }
a { color: var(--post) }
code, pre, textarea, .verb, .path { font-family: ui-monospace, SFMono-Regular, Menlo, monospace; font-size: .86rem }
p code, td code { background: var(--soft); border-radius: 4px; padding: .05rem .3rem; overflow-wrap: anywhere }
details.op { border: 1px solid var(--line); border-radius: 10px; margin: .5rem 0 }
details.op > summary { display: grid; grid-template-columns: 4.4rem 15rem 1fr; gap: 0 .8rem; align-items: baseline;
  padding: .6rem .9rem; cursor: pointer; list-style: none }
details.op > summary::-webkit-details-marker { display: none }
details.op > summary:hover { background: var(--soft); border-radius: 10px }
details.op[open] > summary { border-bottom: 1px solid var(--line); border-radius: 10px 10px 0 0 }
.inside { padding: .6rem 1rem 1rem } .verb { font-weight: 700 }
.POST { color: var(--post) } .GET { color: var(--get) } .DELETE { color: var(--delete) }
.path { font-weight: 600; overflow-wrap: anywhere } .what { color: var(--dim) }
.inside > details { margin: .7rem 0 0 } .inside > details > summary { cursor: pointer; color: var(--dim) }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; margin: .4rem 0 1rem }
td, th { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line);
  font-size: .9rem } th { color: var(--dim) }
td:first-child { white-space: nowrap }
pre, textarea { background: var(--soft); border: 1px solid var(--line); border-radius: 8px; padding: .7rem; width: 100%;
  color: var(--ink); overflow: auto; margin: .3rem 0; white-space: pre-wrap; overflow-wrap: anywhere }
output pre { max-height: 30rem } textarea { resize: vertical; field-sizing: content; line-height: 1.5 }
.example { position: relative } .example pre { padding-right: 5rem } .example button { position: absolute; top: .8rem;
  right: .5rem; padding: .1rem .7rem; font-size: .85rem; background: var(--back); color: var(--post) }
button { font: inherit; padding: .3rem 1.1rem; border-radius: 8px; border: 1px solid var(--post); color: var(--back);
  background: var(--post); cursor: pointer }
input { font: inherit; padding: .25rem .6rem; border: 1px solid var(--line); border-radius: 8px; color: var(--ink);
  background: var(--soft); max-width: 100% }
@media (max-width: 44rem) { body { padding: 1.2rem .8rem 4rem }
  details.op > summary { grid-template-columns: 4.4rem 1fr } .what { grid-column: 1 / -1 }
  tr:has(th) { display: none } tr { display: block; padding: .4rem 0; border-bottom: 1px solid var(--line) }
  td { display: block; padding: .1rem 0; border: 0 } }
"""
SCRIPT = """
for (const part of document.querySelectorAll('.origin')) part.textContent = location.origin;
for (const button of document.querySelectorAll('button[data-copy]')) button.addEventListener('click', async () => {
  const text = button.parentElement.querySelector('pre');
  try { await navigator.clipboard.writeText(text.textContent) } catch {
    getSelection().selectAllChildren(text); document.execCommand('copy');
  }
  button.textContent = 'Copied';
  setTimeout(() => button.textContent = 'Copy', 1500);
});
for (const form of document.querySelectorAll('form')) form.addEventListener('submit', async event => {
  event.preventDefault();
  const out = form.querySelector('output'), area = form.querySelector('textarea');
  const headers = {}, key = document.querySelector('#key')?.value;
  if (area) headers['content-type'] = 'application/json';
  if (key) headers['authorization'] = 'Bearer ' + key;
  let path = form.dataset.path;
  for (const input of form.querySelectorAll('input[data-part]'))
    path = path.replace('{' + input.dataset.part + '}', encodeURIComponent(input.value));
  const shown = document.createElement('pre');
  shown.textContent = '…';
  out.replaceChildren(shown);
  const began = performance.now();
  let text;
  try {
    const answer = await fetch(path, {method: form.dataset.method, headers, body: area ? area.value : undefined});
    text = await answer.text();
    try { text = JSON.stringify(JSON.parse(text), null, 2) } catch {}
    text = answer.status + ' in ' + Math.round(performance.now() - began) + ' ms\\n' + text.slice(0, 50000);
  } catch (error) { text = String(error) }
  shown.textContent = text;
});
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {_hash(STYLE)}; script-src {_hash(SCRIPT)}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",  # it names the model that is served now
}
