"""lm-evaluation-harness with onepass as its model: `python -m onepass.integrations.lm_eval --model onepass ...`.

The options are those of `lm_eval`, which has no way to find models of other packages by itself; from Python, importing
this module is enough for `lm_eval.simple_evaluate(model="onepass")`. The model runs in this process, or behind
`base_url`. Which requests answer the harness is `loglikelihood`; texts and tokens are `evaluation_backend`.
"""

import atexit
from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from onepass.errors import OnepassError
from onepass.integrations.evaluation_backend import Backend, LocalBackend, RemoteBackend
from onepass.integrations.loglikelihood import IN_FLIGHT, Pair, loglikelihoods, truncated
from onepass.scorer import DEFAULT_MODEL

Encoded = tuple[Any, list[int], list[int]]  # the harness's cache key, context and continuation


@register_model("onepass")
class OnepassLM(TemplateLM):
    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        pretrained: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        max_length: int | None = None,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        batch_size: int | str = IN_FLIGHT,
        max_batch_size: int | None = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        """`model` (or `pretrained`) and `options` are those of `Scorer.load`; with `base_url` the model of that server
        is asked. `batch_size` is how many requests are in flight. The device is JAX's choice: `device` is what the
        harness passes on, and has no effect."""
        super().__init__()
        self._backend: Backend
        if base_url is None:
            self._backend = LocalBackend.load(pretrained or model, options)
        elif options:
            raise OnepassError(f"with base_url the server has its own options; got {', '.join(options)}")
        else:
            self._backend = RemoteBackend.connect(base_url, api_key)
        self._in_flight = batch_size if isinstance(batch_size, int) and batch_size > 1 else IN_FLIGHT
        self._max_length = max_length or self._backend.max_length
        self._add_bos = add_bos_token
        self._prefix_token_id = prefix_token_id
        self._encoded: dict[tuple[str, bool], list[int]] = {}

        atexit.register(self._backend.close)

    @property
    def max_length(self) -> int:
        return self._max_length

    @property
    def eot_token_id(self) -> int:
        return self._backend.special_token_id("eos_token")

    @property
    def prefix_token_id(self) -> int:
        """What an empty context stands for: BOS, or EOS where there is none."""
        if self._prefix_token_id is not None:
            return self._prefix_token_id
        names = [name for name in ("bos_token", "eos_token") if self._backend.special_tokens.get(name)]
        return self._backend.special_token_id(names[0] if names else "eos_token")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        key = (string, self._adds_special(string, add_special_tokens))
        if key not in self._encoded:
            self._encode([key])
        return list(self._encoded[key])

    def _adds_special(self, string: str, wanted: bool | None) -> bool:
        """As the harness's `hf` model: not where a text begins with the token already."""
        if wanted is not None:
            return wanted
        prefix = self._backend.special_tokens.get("bos_token") or self._backend.special_tokens.get("eos_token")
        if prefix and string.startswith(prefix):
            return False
        return True if self._add_bos is None else self._add_bos

    def _encode(self, keys: Sequence[tuple[str, bool]]) -> None:
        for special in (True, False):
            texts = [text for text, wanted in dict.fromkeys(keys) if wanted == special]
            encoded = self._backend.encode(texts, special)
            self._encoded.update(zip([(text, special) for text in texts], encoded, strict=True))

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Tokenises contexts and whole texts together before the harness asks for each."""
        texts = []
        for context, continuation in (request.args for request in requests):
            end = context.rstrip()
            texts += [end, context + continuation] if context else []
        self._encode([(text, self._adds_special(text, None)) for text in texts])
        out: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        self._encoded.clear()
        return out

    def _loglikelihood_tokens(
        self, requests: list[Encoded], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        pairs = [truncated(context, continuation, self.max_length) for _, context, continuation in requests]
        out: list[tuple[float, bool] | None] = [None] * len(pairs)
        with tqdm(total=len(pairs), desc="Running loglikelihood requests", disable=disable_tqdm) as bar:
            for number, read in loglikelihoods(self._backend.scorer, pairs, self._in_flight):
                out[number] = (read.logprob, read.is_greedy)
                if requests[number][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[number][0], out[number])
                bar.update()
        return [answer for answer in out if answer is not None]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Windows of the model's length over each text, every token predicted once."""
        owners: list[int] = []
        pairs: list[Pair] = []
        for owner, (text,) in enumerate(request.args for request in requests):
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for window in map(make_disjoint_window, windows):
                owners.append(owner)
                pairs.append(truncated(window[0], window[1], self.max_length))
        sums = [0.0] * len(requests)
        with tqdm(total=len(pairs), desc="Running rolling windows", disable=disable_tqdm) as bar:
            read = dict(loglikelihoods(self._backend.scorer, pairs, self._in_flight))
            bar.update(len(pairs))
        for number, owner in enumerate(owners):
            sums[owner] += read[number].logprob
        for request, value in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        task = requests[0].task_name if requests else "this task"
        raise OnepassError(
            f"onepass scores, it does not write: {task} asks for generated text (generate_until); choose tasks of "
            "output_type multiple_choice, loglikelihood or loglikelihood_rolling"
        )

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self._backend.render(chat_history, add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self._backend.chat_source(chat_template) if chat_template else None

    @property
    def tokenizer_name(self) -> str:
        return self._backend.name.replace("/", "__")


def main() -> None:
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
