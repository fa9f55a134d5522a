"""The words a model is given: a state that all questions share, and after it one question with its labelled options.

    head                                        question                        tail
    <template's beginning> state \\n\\n           Question: … A. … B. … Answer …   <end of turn, answer's beginning>
    └ the context, computed once and kept ┘     └ one item per question ───────────────────────────────────────┘

A model with a chat template is asked in a user message, with thinking off; a base model is asked in plain text. Which
labels stand before the options is `labels`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from onepass.decisions.questions import Option, Question
from onepass.decisions.state import State
from onepass.errors import RequestError
from onepass.loading.chat.template import ChatTemplates

MARKER = "onepassQUESTIONmarker7Q"
PLAIN_TAIL = "\nAnswer:"
# What templates call the switch; those that have none ignore it.
THINKING_OFF = {"enable_thinking": False, "thinking": False}
THINKING = (("<think>", "</think>"), ("<seed:think>", "</seed:think>"))
YES_NO = ("Yes", "No")


@dataclass(frozen=True)
class DecisionPrompt:
    """`head` is the shared context, `tail` follows every question. A chat template writes the tokenizer's own
    beginning (BOS) itself; a plain prompt leaves it to the tokenizer."""

    head: str
    tail: str
    from_template: bool


def decision_prompt(templates: ChatTemplates, state: State) -> DecisionPrompt:
    if templates.default is None:
        lead = f"{state.system}\n\n" if state.system else ""
        return DecisionPrompt(f"{lead}{state.text}\n\n", PLAIN_TAIL, False)
    marker = MARKER
    while marker in state.text or marker in state.system:
        marker += "Q"
    rendered = _rendered(templates, state, marker)
    if rendered.count(marker) != 1:
        raise RequestError(
            "chat_template_failed", "the chat template must write a user message once, as it is; it does not", "state"
        )
    head, _, tail = rendered.partition(marker)
    return DecisionPrompt(head, _with_thinking_closed(tail), True)


def _rendered(templates: ChatTemplates, state: State, marker: str) -> str:
    """Templates without a system role, such as Gemma's, get the system text as the beginning of the user message."""
    asked = f"{state.text}\n\n{marker}"
    alone = [{"role": "user", "content": f"{state.system}\n\n{asked}" if state.system else asked}]
    both = [{"role": "system", "content": state.system}, {"role": "user", "content": asked}]
    if not state.system:
        return templates.render(alone, add_generation_prompt=True, variables=THINKING_OFF)
    try:
        return templates.render(both, add_generation_prompt=True, variables=THINKING_OFF)
    except RequestError:
        return templates.render(alone, add_generation_prompt=True, variables=THINKING_OFF)


def _with_thinking_closed(tail: str) -> str:
    """Templates that always think open a block for it; the answer is read after it."""
    for opened, closed in THINKING:
        if tail.rfind(opened) > tail.rfind(closed):
            return f"{tail.rstrip()}\n\n{closed}\n\n"
    return tail


def question_text(question: Question, order: Sequence[int], labels: Sequence[str]) -> str:
    """The question with its options in this order, each under its label. A predicate answered with yes and no words has
    lines for them only where they are described."""
    options = [question.options[i] for i in order]
    labelled = list(zip(labels, options, strict=True))
    if question.type == "predicate" and set(labels) == set(YES_NO):
        lines = [f"{label}: {option.description}" for label, option in labelled if option.description]
        cue = f"Answer with {labels[0]} or {labels[1]} only."
    else:
        lines = [_line(question, label, option) for label, option in labelled]
        cue = f"Answer with the label of one {'level' if question.type == 'score' else 'option'} only."
    return "\n".join([f"Question: {question.instructions}", *lines, cue])


def _line(question: Question, label: str, option: Option) -> str:
    text = option.text
    if question.type == "predicate":
        text = YES_NO[0] if option.value else YES_NO[1]
    return f"{label}. {text}: {option.description}" if option.description else f"{label}. {text}"


def candidate_text(candidate: str) -> str:
    return f"Candidate: {candidate}\n\n"
