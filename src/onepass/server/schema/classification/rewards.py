"""Rewards: `POST /get_reward` as OpenRLHF's trainer calls it, and `POST /v1/rewards`, our own."""

from typing import Any

from onepass.errors import RequestError, shown
from onepass.server.schema.chat import CHAT_PROPERTIES
from onepass.server.schema.classification.call import (
    CHAT,
    CUT,
    INPUTS,
    LABELS,
    ClassCall,
    Classified,
    Conversation,
    Prompt,
    chat_options,
    check_count,
    label_list,
    prompts_of,
)
from onepass.server.schema.classification.classify import prompt_limit
from onepass.server.schema.fields import (
    MODEL,
    NUMBERS,
    PRIORITY,
    TEXT,
    USER,
    Fields,
    Schema,
    answer_schema,
    body_schema,
    optional_text,
)
from onepass.server.schema.usage import USAGE, usage_of

TEXTS: Schema = {"anyOf": [{"type": "array", "items": TEXT, "minItems": 1}, {"type": "null"}]}
IGNORED: Schema = {"type": ["array", "null"], "description": "OpenRLHF's: accepted, without effect on a reward model."}
OPENRLHF_BODY = body_schema(
    "OpenRlhfRewardBody",
    {
        "query": {
            "anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1}],
            "description": "Prompt and response as one text, with the chat template already applied; nothing is added.",
        },
        "prompts": IGNORED,
        "labels": IGNORED,
        "model": MODEL,
        "priority": PRIORITY,
    },
    ("query",),
)
OPENRLHF_ANSWER: Schema = answer_schema(
    "OpenRlhfRewards", {"rewards": NUMBERS, "scores": NUMBERS, "extra_logs": {"type": "object"}}
)
BODY = body_schema(
    "RewardBody",
    {
        "messages": {**CHAT_PROPERTIES["messages"], "description": "The conversation that the responses answer."},
        "prompt": optional_text("In place of messages: the text of a single user message."),
        "responses": {**TEXTS, "description": "What the assistant might answer; each gets a reward."},
        "conversations": {
            "anyOf": [{"type": "array", "items": {"type": "array"}, "minItems": 1}, {"type": "null"}],
            "description": "Finished conversations, each a list of messages, in place of messages and responses.",
        },
        "input": {**INPUTS, "description": "Finished texts or token ids, in place of all of these."},
        **CHAT,
        "labels": LABELS,
        **CUT,
        "model": MODEL,
        "priority": PRIORITY,
        "user": USER,
    },
)
BODY["examples"] = [{"input": ["Q: 1 + 1? A: 2", "Q: 1 + 1? A: 11"], "labels": [" yes", " no"]}]
ANSWER: Schema = answer_schema(
    "Rewards", {"object": {"const": "rewards"}, "model": TEXT, "rewards": NUMBERS, "usage": USAGE}
)


def parse_openrlhf(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> ClassCall:
    fields = Fields.of(body, OPENRLHF_BODY)
    model = fields.model(served_names)
    for name in ("prompts", "labels"):
        if not isinstance(fields.get(name, []), list):
            raise RequestError(f"invalid_{name}", f"{name} must be a list; got {shown(fields.get(name))}", name)
    query = fields.get("query")
    texts = [query] if isinstance(query, str) else query
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RequestError("invalid_query_type", f"query must be a list of strings; got {shown(query)}", "query")
    check_count(texts, "query")
    names = tuple(f"query[{number}]" for number in range(len(texts)))
    return ClassCall(tuple(texts), names, model, fields.priority(priority), add_special_tokens=False)


def parse(body: dict[str, Any], served_names: tuple[str, ...], priority: int) -> ClassCall:
    fields = Fields.of(body, BODY)
    model = fields.model(served_names)
    fields.text("user")
    prompts, names = _prompts(fields)
    return ClassCall(
        prompts,
        names,
        model,
        fields.priority(priority),
        labels=label_list(fields),
        limit=prompt_limit(fields),
        chat=chat_options(fields),
    )


def _prompts(fields: Fields) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    given = fields.first("messages", "prompt", "conversations", "input")
    if given is None:
        wanted = "messages (or prompt) with responses, conversations, or input"
        raise RequestError("missing_input", f"{wanted} is required", "messages")
    answered = fields.get("messages") is not None or fields.get("prompt") is not None
    if not answered and fields.get("responses") is not None:
        raise RequestError("conflicting_fields", "responses belong to messages or prompt", "responses")
    if fields.get("input") is not None:
        prompts, names, _ = prompts_of(given, "input")
        return prompts, names
    if not answered:
        if not isinstance(given, list):
            message = f"conversations must be a list of lists of messages; got {shown(given)}"
            raise RequestError("invalid_conversations", message, "conversations")
        check_count(given, "conversations")
        return tuple(map(Conversation, given)), tuple(f"conversations[{n}]" for n in range(len(given)))
    return _answered(fields)


def _answered(fields: Fields) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The same messages with each of the responses."""
    prompt, messages, responses = fields.text("prompt"), fields.get("messages"), fields.get("responses")
    if prompt is not None:
        messages = [{"role": "user", "content": prompt}]
    if not isinstance(messages, list) or not messages:
        message = f"messages must be a list of objects with role and content; got {shown(messages)}"
        raise RequestError("invalid_messages", message, "messages")
    if not isinstance(responses, list) or not all(isinstance(text, str) for text in responses):
        message = f"responses must be a list of strings; got {shown(responses)}"
        raise RequestError("invalid_responses", message, "responses")
    check_count(responses, "responses")
    prompts = tuple(Conversation([*messages, {"role": "assistant", "content": text}]) for text in responses)
    return prompts, tuple(f"responses[{number}]" for number in range(len(responses)))


def openrlhf_answer(classified: Classified) -> dict[str, Any]:
    rewards = rewards_of(classified)
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}


def answer(call: ClassCall, classified: Classified) -> dict[str, Any]:
    usage = usage_of(classified.results)
    return {"object": "rewards", "model": call.model, "rewards": rewards_of(classified), "usage": usage}


def rewards_of(classified: Classified) -> list[float]:
    return [classified.reward(row.logits) for row in classified.rows]
