"""The nouns a caller meets: `ScoreRequest` in, `ScoreResult` and `Ranking` out. No JAX here.

Checking a request against a model is `engine.encoding.encode`; turning these into JSON is the server's work and the
CLI's.
"""

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from onepass.tables import data_frame, html_table
from onepass.trace import Trace

if TYPE_CHECKING:
    import pandas

__all__ = [
    "ChatOptions",
    "ContextHandle",
    "Continuation",
    "Mode",
    "Prompt",
    "PromptPart",
    "RankedItem",
    "Ranking",
    "ScoreRequest",
    "ScoreResult",
    "Timings",
    "Usage",
]

Mode = Literal["auto", "serial", "packed", "chunked", "extend"]
MODES: tuple[Mode, ...] = ("auto", "serial", "packed", "chunked", "extend")
Text = str | Sequence[int]
Continuations = Sequence[Text] | Sequence[Sequence[Text]]  # for all items, or one list per item
ItemRole = Literal["user", "assistant"]
ITEM_ROLES: tuple[ItemRole, ...] = ("user", "assistant")


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How `messages` become a prompt.

    The item stands where a message has `{item}`, else at the end of the last message of `item_role`, else in a new
    message of that role. `template` names one of the model's chat templates; `template_kwargs` are variables that it
    reads (`{"enable_thinking": False}`). After a user's message the template's generation prompt follows unless
    `add_generation_prompt` is False; an assistant's message is left open, so that labels are read right after the item,
    unless `continue_final_message` is False. Models with a classification head read the finished conversation instead.
    """

    item_role: ItemRole = "user"
    template: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> "ChatOptions | None":
        """From the members of a JSON request, by the names that vLLM and SGLang use; None where there are none."""
        values = {name: given[key] for key, name in CHAT_FIELDS.items() if given.get(key) is not None}
        return cls(**values) if values else None

    def to_fields(self) -> dict[str, Any]:
        """The same names, without what is as it is by default."""
        plain = ChatOptions()
        return {
            key: getattr(self, name) for key, name in CHAT_FIELDS.items() if getattr(self, name) != getattr(plain, name)
        }


CHAT_FIELDS = {
    "item_role": "item_role",
    "chat_template": "template",
    "chat_template_kwargs": "template_kwargs",
    "add_generation_prompt": "add_generation_prompt",
    "continue_final_message": "continue_final_message",
}


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """Score each item: P(next token = label | query + item).

    Text or token ids, the same kind for query and items. Labels are strings of one token each (`labels`) or ids
    (`label_token_ids`; a list per item gives every item its own set). `continuations` are texts or id lists of any
    length whose log-probability after `query + item` is wanted, for all items or, as one list per item, for each its
    own (multiple choice); labels may then be left out. `messages` (objects with role and content) take the place of
    the query and are rendered by the model's chat template, as `chat` says.
    """

    query: Text | None = None
    items: Text | Sequence[Text] = ()
    labels: Sequence[str] | None = None
    label_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None
    continuations: Continuations | None = None
    apply_softmax: bool = False
    temperature: float = 1.0
    item_first: bool = False
    delimiter_token_id: int | None = None
    mode: Mode = "auto"
    context: str | None = None
    # With apply_softmax, label_mass=False spares the pass over the whole vocabulary (logprobs are then None).
    label_mass: bool = True
    messages: Sequence[Mapping[str, Any]] | None = None
    chat: ChatOptions | None = None
    add_special_tokens: bool = True  # False: a text query gets no BOS, for texts that have it written out
    return_prompt: bool = False  # the result has the tokens that the model was given, as text
    return_trace: bool = False  # the result has the steps that computed it


@dataclass(frozen=True)
class ContextHandle:
    """A query's keys and values, kept on the device under `id`: what `prefill` returns and `score(context=)` takes."""

    id: str
    tokens: int
    bytes: int
    expires_at: float  # seconds since the epoch
    pinned: bool


def context_id(context: ContextHandle | str | None) -> str | None:
    return context.id if isinstance(context, ContextHandle) else context


@dataclass(frozen=True)
class Usage:
    """Tokens of the request: the query counted once; `cached_tokens` were already on the device. None: the server did
    not say."""

    prompt_tokens: int
    cached_tokens: int = 0
    computed_tokens: int | None = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens


@dataclass(frozen=True)
class Timings:
    """Milliseconds; `padding_ratio` is the work done over the work needed, 1 at best. None: the server did not say."""

    encode_ms: float = 0.0
    queue_ms: float = 0.0
    device_ms: float = 0.0
    total_ms: float = 0.0
    padding_ratio: float | None = 1.0
    compilations: int | None = 0


@dataclass(frozen=True)
class Continuation:
    """log P(text | query + item): the sum over its tokens, and each. `is_greedy`: every token is the most likely one
    after those before it; `best_token_ids` and `best_logprobs` are the most likely ones (not told over HTTP)."""

    logprob: float
    token_logprobs: tuple[float, ...]
    is_greedy: bool = False
    best_token_ids: tuple[int, ...] = ()
    best_logprobs: tuple[float, ...] = ()

    @property
    def mean_logprob(self) -> float:
        return self.logprob / max(1, len(self.token_logprobs))


@dataclass(frozen=True)
class PromptPart:
    """A part of a prompt: its tokens, and their text with special tokens written out."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Prompt:
    """What the model was given: `shared` once, and after it each of `items`. Labels are read at the last token of each
    item, which is token number `readout_positions[i]` of shared + items[i]. Continuations, whose likelihood is read
    from there on, are one set per item; of a request without any, `continuations` is empty."""

    shared: PromptPart
    items: tuple[PromptPart, ...]
    continuations: tuple[tuple[PromptPart, ...], ...] = ()

    @property
    def readout_positions(self) -> list[int]:
        return [len(self.shared.token_ids) + len(item.token_ids) - 1 for item in self.items]

    def to_dict(self) -> dict[str, Any]:
        def part(value: PromptPart) -> dict[str, Any]:
            return {"text": value.text, "token_ids": list(value.token_ids)}

        items = [
            {**part(item), "readout_position": position}
            for item, position in zip(self.items, self.readout_positions, strict=True)
        ]
        for item, texts in zip(items, self.continuations, strict=False):
            item["continuations"] = [part(text) for text in texts]
        return {"shared": part(self.shared), "items": items}


@dataclass(frozen=True)
class ScoreResult:
    """One row per item, in the order they came.

    `scores[i][j]` is the probability of label j (over the labels with `apply_softmax`, else over the vocabulary);
    `logprobs` and `logits` are the raw values over the whole vocabulary; `label_mass[i]` is how much of the
    vocabulary's probability the labels hold: near 0, the model never meant to answer with them.
    """

    scores: list[list[float]]
    logprobs: list[list[float]] | None
    logits: list[list[float]]
    label_mass: list[float] | None
    labels: list[list[str]]
    label_token_ids: list[list[int]]
    usage: Usage
    timings: Timings
    mode: str
    reason: str
    model: str
    continuations: list[list[Continuation]] | None = None
    items: Text | Sequence[Text] = field(default=(), repr=False)  # as they came
    prompt: Prompt | None = field(default=None, repr=False)  # with return_prompt
    trace: Trace | None = field(default=None, repr=False)  # with return_trace

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, ready for JSON."""
        out: dict[str, Any] = {
            "object": "scoring",
            "model": self.model,
            "scores": self.scores,
            "logprobs": self.logprobs,
            "label_mass": self.label_mass,
            "labels": self.labels,
            "label_token_ids": self.label_token_ids,
            "mode": self.mode,
            "reason": self.reason,
            "usage": {
                "prompt_tokens": self.usage.prompt_tokens,
                "total_tokens": self.usage.total_tokens,
                "cached_tokens": self.usage.cached_tokens,
                "computed_tokens": self.usage.computed_tokens,
            },
            "timings": vars(self.timings).copy(),
        }
        if self.continuations is not None:
            out["continuations"] = [
                [
                    {
                        "logprob": c.logprob,
                        "mean_logprob": c.mean_logprob,
                        "is_greedy": c.is_greedy,
                        "token_logprobs": list(c.token_logprobs),
                    }
                    for c in row
                ]
                for row in self.continuations
            ]
        if self.prompt is not None:
            out["prompt"] = self.prompt.to_dict()
        if self.trace is not None:
            out["trace"] = self.trace.to_dict()
        return out

    def __len__(self) -> int:
        return len(self.scores)

    def best(self, item: int) -> str | None:
        """The label with the highest score after that item; None where no labels were asked for."""
        scores = self.scores[item]
        return self.labels[item][max(range(len(scores)), key=scores.__getitem__)] if scores else None

    def to_rows(self) -> list[dict[str, Any]]:
        """A dict per item: its text, the score of each label under the label's name, `best`, `label_mass`, and the
        log-probability of each continuation as `logprob 0`, `logprob 1`, ... in their order."""
        return [self._cells(i) for i in range(len(self))]

    def _cells(self, item: int) -> dict[str, Any]:
        cells: dict[str, Any] = {"item": text_of(self.items, item)}
        cells |= zip(self.labels[item], self.scores[item], strict=True)
        if self.scores[item]:
            cells["best"] = self.best(item)
            if self.label_mass is not None:
                cells["label_mass"] = self.label_mass[item]
        if self.continuations is not None:
            cells |= {f"logprob {n}": one.logprob for n, one in enumerate(self.continuations[item])}
        return cells

    def to_pandas(self) -> "pandas.DataFrame":
        """`to_rows` as a DataFrame; needs pandas."""
        return data_frame(self.to_rows())

    def _repr_html_(self) -> str:
        """What a notebook shows: scores as shaded cells."""
        return html_table(self._head(), self.to_rows(), self.labels)

    def _head(self) -> str:
        return f"{counted(len(self), 'item')} · {self.model} · mode {self.mode} · {self.timings.total_ms:.0f} ms"

    def __str__(self) -> str:
        return "\n".join([self._head(), *(self._row(i) for i in range(len(self.scores)))])

    def _row(self, i: int) -> str:
        cells = [f"{name!r} {score:.4f}" for name, score in zip(self.labels[i], self.scores[i], strict=True)]
        if self.continuations is not None:
            cells += [f"log P {c.logprob:.3f}" for c in self.continuations[i]]
        if self.label_mass is not None and self.scores[i]:
            cells.append(f"mass {self.label_mass[i]:.4f}")
        return f"  [{i}] {shorten(text_of(self.items, i)):<40} {'  '.join(cells)}"


@dataclass(frozen=True)
class RankedItem:
    index: int
    score: float
    item: str | None  # None without return_documents


@dataclass(frozen=True)
class Ranking:
    """Items best first. `index` is each item's place in the request; `result` has the numbers behind the order."""

    items: list[RankedItem]
    method: str
    result: ScoreResult

    def __iter__(self) -> Iterator[RankedItem]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> RankedItem:
        return self.items[place]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, ready for JSON."""
        return {
            "object": "ranking",
            "model": self.result.model,
            "method": self.method,
            "results": [vars(ranked).copy() for ranked in self.items],
            "usage": self.result.to_dict()["usage"],
        }

    def to_pandas(self) -> "pandas.DataFrame":
        """A row per item, best first: index, score, item; needs pandas."""
        return data_frame([vars(ranked) for ranked in self.items])

    def _repr_html_(self) -> str:
        rows = [{"rank": n + 1, **vars(ranked)} for n, ranked in enumerate(self.items)]
        return html_table(f"{counted(len(self), 'item')} by {self.method} · {self.result.model}", rows)

    def __str__(self) -> str:
        head = f"{counted(len(self.items), 'item')} by {self.method} · {self.result.model} · mode {self.result.mode}"
        rows = [
            f"  {n + 1:>3}. {r.score:>9.4f}  [{r.index}] {shorten(r.item or '', 70)}" for n, r in enumerate(self.items)
        ]
        return "\n".join([head, *rows])


def text_of(items: Text | Sequence[Text], index: int) -> str:
    """An item as a person would name it: its text, or how many token ids it is."""
    item = items if isinstance(items, str) else items[index]
    return item if isinstance(item, str) else f"<{len(item)} tokens>" if isinstance(item, Sized) else f"<{item}>"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shorten(text: str, width: int = 40) -> str:
    """One line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
