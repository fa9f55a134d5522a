"""litellm's `decisions` and `systemone`, at a server whose address comes on stdin. Runs in `.clients-venv`."""

import json
import sys
from typing import Any

import litellm
from asking import _stay_here as stay_here


def main() -> None:
    refused: list[str] = []
    sys.addaudithook(lambda event, args: stay_here(event, args, refused))
    task = json.load(sys.stdin)
    to = {"model": f"openai/{task['model']}", "api_base": f"{task['url']}/v1", "api_key": task["key"]}
    questions: list[Any] = [
        {"type": "predicate", "name": "urgent", "instructions": "Is this urgent?"},
        {
            "type": "choice",
            "name": "team",
            "instructions": "Which team should handle it?",
            "choices": [{"value": "billing", "description": "payments"}, {"value": "shipping"}, {"value": True}],
        },
    ]
    by_key: dict[str, Any] = {"urgent": {"type": "noul", "instructions": "Is this urgent?"}}
    calls = {
        "decisions": lambda: litellm.decisions(input=task["state"], questions=questions, **to),
        "systemone": lambda: litellm.systemone(state=task["state"], questions=by_key, **to),
        "bad body": lambda: litellm.decisions(input="", questions=questions, **to),
    }
    report = {}
    for name, call in calls.items():
        try:
            report[name] = {"answer": json.loads(call().model_dump_json())}
        except Exception as error:
            report[name] = {"raised": f"{type(error).__name__}: {error}"}
    json.dump({"calls": report, "reached_for": refused}, sys.stdout)


if __name__ == "__main__":
    main()
