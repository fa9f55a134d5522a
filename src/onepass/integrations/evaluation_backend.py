"""What an evaluation harness needs of a model besides scores: tokens, special tokens, the chat template, its length.

`LocalBackend` has them from a `Scorer` in this process, `RemoteBackend` from a server's `/tokenize` and
`/tokenizer_info`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx2

from onepass.client.blocking import Client
from onepass.errors import OnepassError
from onepass.integrations.loglikelihood import Submitter
from onepass.loading.chat.template import ChatTemplates
from onepass.scorer import Scorer

TEXTS_AT_ONCE = 256  # of one call to /tokenize
PATHS = ("programs_dir", "cache_dir", "template")  # options of `Scorer.load`


@dataclass(frozen=True)
class Backend:
    name: str
    scorer: Submitter
    max_length: int
    chat: ChatTemplates

    @property
    def special_tokens(self) -> Mapping[str, str]:
        return self.chat.special_tokens

    def special_token_id(self, name: str) -> int:
        text = self.special_tokens.get(name)
        ids = self.encode([text], False)[0] if text else []
        if len(ids) != 1:
            raise OnepassError(f"{self.name} has no {name}; give prefix_token_id among the model's arguments")
        return ids[0]

    def encode(self, texts: Sequence[str], special: bool) -> list[list[int]]:
        """`special`: with what the tokenizer puts before a text (BOS)."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def chat_source(self, name: bool | str) -> str:
        return self.chat.source(name if isinstance(name, str) else None)

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
        """Without a generation prompt the text ends with the last message's own words, to be continued."""
        text = self.chat.render(messages, add_generation_prompt=add_generation_prompt)
        if add_generation_prompt:
            return text
        last = str(messages[-1]["content"]).strip()
        return text[: text.rindex(last) + len(last)]


@dataclass(frozen=True)
class LocalBackend(Backend):
    scorer: Scorer

    @classmethod
    def load(cls, model: str, options: Mapping[str, Any]) -> Self:
        """`options` are keywords of `Scorer.load`, with paths as the text that a command line has."""
        paths = {name: Path(options[name]) for name in PATHS if options.get(name) is not None}
        scorer = Scorer.load(model, **{**options, **paths})
        return cls(scorer.model.name, scorer, scorer.model.config.max_position, scorer.model.chat)

    def encode(self, texts: Sequence[str], special: bool) -> list[list[int]]:
        tokenizer = self.scorer.tokenizer
        return [tokenizer.encode_query(text) for text in texts] if special else tokenizer.encode_items(texts)

    def close(self) -> None:
        self.scorer.close()


@dataclass(frozen=True)
class RemoteBackend(Backend):
    scorer: Client
    http: httpx2.Client

    @classmethod
    def connect(cls, url: str, api_key: str | None) -> Self:
        """`url` may end with /v1 or the path of an endpoint, as other clients write it."""
        base = url.rstrip("/")
        for ending in ("/completions", "/v1"):
            base = base.removesuffix(ending)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        http = httpx2.Client(base_url=base, headers=headers, timeout=600.0)
        info = _answer(http.get("/tokenizer_info"))
        template = {} if info["chat_template"] is None else {"default": info["chat_template"]}
        tokens = {name: text for name, text in info.items() if name.endswith("_token") and text is not None}
        chat = ChatTemplates(template, tokens)
        name = _answer(http.get("/v1/models"))["data"][0]["id"]
        return cls(name, Client(base, api_key=api_key), info["max_model_len"], chat, http)

    def encode(self, texts: Sequence[str], special: bool) -> list[list[int]]:
        out: list[list[int]] = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = list(texts[start : start + TEXTS_AT_ONCE])
            out += _answer(self.http.post("/tokenize", json={"prompt": some, "add_special_tokens": special}))["tokens"]
        return out

    def close(self) -> None:
        self.scorer.close()
        self.http.close()


def _answer(response: httpx2.Response) -> Any:
    if response.status_code != 200:
        raise OnepassError(f"{response.url} answered {response.status_code}: {response.text[:500]}")
    return response.json()
