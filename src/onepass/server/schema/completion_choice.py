"""What was read of a prompt as a choice of `/v1/completions`: OpenAI's `logprobs` and vLLM's `prompt_logprobs`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from onepass.engine.encoding.ids import Ids
from onepass.loading.tokenizer import TextTokenizer
from onepass.server.schema.completions import CompletionCall

Best = tuple[int, float]  # the most likely token and its log-probability


@dataclass(frozen=True)
class Prompt:
    """`text` is None of a prompt that came as ids."""

    ids: Ids
    text: str | None


@dataclass(frozen=True)
class PromptRead:
    """At each token that was read: its log-probability, and the most likely token there with its own."""

    logprobs: tuple[float, ...] = ()
    best_ids: tuple[int, ...] = ()
    best_logprobs: tuple[float, ...] = ()

    def __add__(self, other: "PromptRead") -> "PromptRead":
        return PromptRead(
            self.logprobs + other.logprobs,
            self.best_ids + other.best_ids,
            self.best_logprobs + other.best_logprobs,
        )


@dataclass(frozen=True)
class TokenAt:
    """A token of an answer; both None of a prompt's first, which nothing comes before."""

    token: int
    logprob: float | None
    best: Best | None

    @property
    def is_best(self) -> bool:
        return self.best is not None and self.token == self.best[0]

    @property
    def told_logprob(self) -> float | None:
        """That of the most likely token where it is this one, to the last bit: clients compare the two. A token's own
        logit is computed apart from the vocabulary's, and rounded otherwise."""
        return self.best[1] if self.best is not None and self.is_best else self.logprob


@dataclass
class ChoiceWriter:
    """Choices of one call; tokens are named once."""

    call: CompletionCall
    tokenizer: TextTokenizer | None
    _names: dict[int, str] = field(default_factory=dict)

    def choice(self, number: int, prompt: Prompt, read: PromptRead) -> dict[str, Any]:
        call = self.call
        best = list(zip(read.best_ids, read.best_logprobs, strict=True))
        new = [TokenAt(best[-1][0], best[-1][1], best[-1])] if call.max_tokens else []
        echoed: list[TokenAt] = []
        if call.reads_prompt:
            later = zip(prompt.ids[1:], read.logprobs, best, strict=False)
            echoed = [TokenAt(prompt.ids[0], None, None), *(TokenAt(*at) for at in later)]
        choice: dict[str, Any] = {
            "index": number,
            "text": (self._text(prompt) if call.echo else "") + "".join(self._name(at.token) for at in new),
            "logprobs": None if call.top is None else self._logprobs([*(echoed if call.echo else []), *new]),
            "finish_reason": "length",
        }
        if call.prompt_top is not None:
            choice["prompt_logprobs"] = [None, *(self._by_id(at) for at in echoed[1:])]
        return choice

    def _logprobs(self, tokens: Sequence[TokenAt]) -> dict[str, Any]:
        names = [self._name(at.token) for at in tokens]
        return {
            "tokens": names,
            "token_logprobs": [at.told_logprob for at in tokens],
            "top_logprobs": [self._top(at) for at in tokens] if self.call.top else None,
            "text_offset": list(accumulate(map(len, names), initial=0))[:-1],
        }

    def _top(self, at: TokenAt) -> dict[str, float] | None:
        """The most likely token, and the token itself where it is another."""
        if at.best is None or at.logprob is None:
            return None
        own = {} if at.is_best else {self._name(at.token): min(at.logprob, at.best[1])}
        return {**own, self._name(at.best[0]): at.best[1]}

    def _by_id(self, at: TokenAt) -> dict[str, Any]:
        """Of ranks only the first is known."""
        assert at.best is not None
        own = {"logprob": at.told_logprob, "rank": 1 if at.is_best else None, "decoded_token": self._name(at.token)}
        out: dict[str, Any] = {str(at.token): own}
        if self.call.prompt_top and not at.is_best:
            best, logprob = at.best
            out[str(best)] = {"logprob": logprob, "rank": 1, "decoded_token": self._name(best)}
        return out

    def _text(self, prompt: Prompt) -> str:
        if prompt.text is not None:
            return prompt.text
        if self.tokenizer is None:
            return "".join(map(self._name, prompt.ids))
        return self.tokenizer.decode(prompt.ids)

    def _name(self, token: int) -> str:
        if token not in self._names:
            self._names[token] = f"<{token}>" if self.tokenizer is None else self.tokenizer.token(token)
        return self._names[token]
