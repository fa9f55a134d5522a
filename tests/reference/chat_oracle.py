"""What transformers makes of chat templates: `render_jinja_template`, as `apply_chat_template` calls it.

`render` is called by tests and runs this file as a script under the reference environment's Python. To store the values
again: PYTHONPATH=tests .venv/bin/python -m reference.chat_oracle
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

VALUES = Path(__file__).with_name("values") / "chat_templates.json"
# {"template": Jinja source, "messages": [...], "variables": {...}}
Job = dict[str, Any]


def render(reference_python: Path, jobs: list[Job]) -> list[str | None]:
    """The text of each job, or None where transformers raises."""
    done = subprocess.run(
        [str(reference_python), __file__], input=json.dumps(jobs), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"the reference process exited with {done.returncode}:\n{done.stderr[-4000:]}")
    rendered: list[str | None] = json.loads(done.stdout)
    return rendered


def _render(job: Job) -> str | None:
    from transformers.utils.chat_template_utils import render_jinja_template  # type: ignore[import-not-found]

    try:
        texts = render_jinja_template([job["messages"]], chat_template=job["template"], **job["variables"])
    except Exception:
        return None
    text: str = texts[0][0] if isinstance(texts, tuple) else texts[0]
    return text


def _store() -> None:
    from loading.chat.test_template import JOBS

    python = Path(__file__).parents[2] / ".reference-venv" / "bin" / "python"
    texts = [json.dumps(text, ensure_ascii=False) for text in render(python, JOBS)]
    VALUES.write_text("[\n" + ",\n".join(texts) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.stdin.isatty() or __package__:
        _store()
    else:
        print(json.dumps([_render(job) for job in json.load(sys.stdin)]))
