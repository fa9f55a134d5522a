"""OpenAI's, TypeSafe's and pydantic-ai's own calls for typed decisions, at a server whose address comes on stdin; what
each returned or raised goes out as one JSON document. Runs in `.decision-clients-venv`; only loopback is reached."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any, Literal

from asking import _stay_here as stay_here

IMAGE = "data:image/png;base64,iVBORw0KGgo="
QUESTIONS: list[Any] = [
    {"type": "predicate", "name": "urgent", "instructions": "Is this urgent?"},
    {
        "type": "choice",
        "name": "team",
        "instructions": "Which team should handle it?",
        "choices": [{"value": "billing", "description": "payments"}, {"value": "shipping"}, {"value": True}],
    },
    {
        "type": "score",
        "name": "tone",
        "instructions": "How upset?",
        "levels": [{"label": "calm"}, {"label": "furious"}],
    },
]
MESSAGES: list[Any] = [
    {"role": "developer", "content": "You sort tickets."},
    {"role": "user", "content": [{"type": "input_text", "text": "My card was charged twice."}]},
]


def openai_calls(url: str, key: str, model: str, state: str) -> dict[str, Callable[[], Any]]:
    from openai import AsyncOpenAI, OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)

    def create(**changed: Any) -> Any:
        return client.decisions.create(**{"model": model, "input": state, "questions": QUESTIONS, **changed}).to_dict()

    async def concurrently() -> Any:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as other:
            return (await other.decisions.create(model=model, input=state, questions=QUESTIONS)).to_dict()

    image = [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE}]}]
    return {
        "openai": create,
        "openai async": lambda: asyncio.run(concurrently()),
        "openai messages": lambda: create(input=MESSAGES),
        "openai image": lambda: create(input=image),
        "openai bad body": lambda: create(questions=[{"type": "choice", "instructions": "?", "choices": []}]),
        "openai unknown model": lambda: create(model="gpt-6-luna"),
    }


def typesafe_calls(url: str, key: str, model: str, state: str) -> dict[str, Callable[[], Any]]:
    from typesafe_sdk import Choice, Noul, Score, TypeSafeClient

    client = TypeSafeClient(api_key=key, base_url=url, timeout=120)
    questions = {
        "urgent": Noul(instructions="Is this urgent?"),
        "team": Choice(
            instructions="Which team should handle it?",
            criteria={"billing": "payments", "shipping": None, "true": None},
        ),
        "tone": Score(instructions="How upset?", criteria=["calm", "furious"]),
    }

    def ask(**changed: Any) -> Any:
        answer = client.system_one(**{"model": model, "state": state, "questions": questions, **changed})
        return json.loads(answer.model_dump_json())

    return {
        "typesafe": ask,
        "typesafe object": lambda: ask(state={"ticket": state}),
        "typesafe bad body": lambda: ask(state="  "),
        "typesafe models": lambda: [one.name for one in client.models.list().models],
    }


def pydantic_calls(url: str, key: str, model: str, state: str) -> dict[str, Callable[[], Any]]:
    from pydantic import BaseModel, Field
    from pydantic_ai import Agent
    from pydantic_ai.models.system_one import SystemOneModel
    from pydantic_ai.providers.system_one import SystemOneProvider

    class Ticket(BaseModel):
        urgent: bool = Field(description="Is this urgent?")
        team: Literal["billing", "shipping"] = Field(description="Which team should handle it?")
        odds: float = Field(description="Will the customer come back?", ge=0, le=1)

    def run(base: str) -> Any:
        provider = SystemOneProvider(api_key=key, base_url=base)
        agent = Agent(SystemOneModel(model, provider=provider), output_type=Ticket)
        return agent.run_sync(state).output.model_dump()

    return {"pydantic-ai": lambda: run(url), "pydantic-ai with /v1": lambda: run(f"{url}/v1")}


def main() -> None:
    refused: list[str] = []
    sys.addaudithook(lambda event, args: stay_here(event, args, refused))
    task = json.load(sys.stdin)
    report: dict[str, Any] = {}
    for family in (openai_calls, typesafe_calls, pydantic_calls):
        for name, call in family(**task).items():
            try:
                report[name] = {"answer": call()}
            except Exception as error:
                report[name] = {"raised": f"{type(error).__name__}: {error}"}
    json.dump({"calls": report, "reached_for": refused}, sys.stdout)


if __name__ == "__main__":
    main()
