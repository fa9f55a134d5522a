"""The vocabulary in a GGUF file as a `tokenizers` tokenizer that gives the token ids llama.cpp gives.

Two kinds: "gpt2", byte-level BPE split by a named pattern, and "llama", SentencePiece BPE ruled by scores. Only BOS is
ever added: a scored item must be able to follow the query, so `add_eos_token` has no say. Hugging Face's tokenizer.json
is left to `tokenizer`.

Which tokens are special is what the file says. llama.cpp also takes a "</s>" marked as plain text for special; Qwen's
own tokenizer, whose vocabulary has one, does not, and nor do we. No Unicode normalisation is applied, since the file
cannot ask for it: Qwen's own tokenizer composes text (NFC) first, and no reader of GGUF files does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from onepass.errors import BadCheckpoint, UnsupportedModel

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # GGUF token types that are matched before anything is split
SPACE = "▁"  # U+2581, SentencePiece's visible space
SENTENCEPIECE_BOS = 1

CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS_AND_LINES = r"[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTION + "|" + WORDS_AND_LINES.replace("DIGITS", r"\p{N}")
LLAMA3 = CONTRACTION + "|" + WORDS_AND_LINES.replace("DIGITS", r"\p{N}{1,3}")


@dataclass(frozen=True)
class Splitting:
    """How text is cut before the merges: patterns applied one after the other, each to the pieces of the last."""

    patterns: tuple[str, ...]
    whole_words: bool = False  # a piece that is a token is taken whole, without merging
    adds_bos: bool = False  # where the file does not say


DEFAULT = Splitting((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
SINGLE_DIGITS = Splitting((r"\p{N}", GPT2))
LLAMA_BPE = Splitting((LLAMA3,), whole_words=True, adds_bos=True)
# The names llama.cpp gives these patterns in `tokenizer.ggml.pre`.
SPLITTINGS = {
    "default": DEFAULT,
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "phi-2", "exaone4", "trillion", "granite-docling"), Splitting((GPT2,))),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), SINGLE_DIGITS),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"), Splitting((QWEN2,))),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), LLAMA_BPE),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Splitting((LLAMA3,))),
}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """`encode(text, add_special_tokens=False)` gives llama.cpp's ids; with them, BOS comes first if the file says."""
    vocabulary = _Vocabulary.read(metadata)
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        splitting = _splitting(metadata)
        tokenizer = _byte_level(vocabulary, splitting, _need(metadata, "tokenizer.ggml.merges"))
        adds_bos, bos = splitting.adds_bos, None
    elif kind == "llama":
        tokenizer = _sentencepiece(vocabulary, metadata)
        adds_bos, bos = True, SENTENCEPIECE_BOS
    else:
        raise UnsupportedModel(f"tokenizer.ggml.model {kind!r} is not supported; supported: gpt2, llama")
    vocabulary.add_special_tokens(tokenizer)
    if metadata.get("tokenizer.ggml.add_bos_token", adds_bos):
        _add_bos(tokenizer, vocabulary, metadata.get("tokenizer.ggml.bos_token_id", bos))
    return tokenizer


@dataclass(frozen=True)
class _Vocabulary:
    tokens: list[str]
    types: Sequence[int]

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> "_Vocabulary":
        listed = _need(metadata, "tokenizer.ggml.tokens")
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(listed)]
        ((commonest, times),) = Counter(tokens).most_common(1) or [("", 0)]
        if times != 1:
            raise BadCheckpoint(f"the vocabulary must list every token once; it lists {commonest!r} {times} times")
        types = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
        if len(types) != len(tokens):
            raise BadCheckpoint(f"the vocabulary has {len(tokens)} tokens, but {len(types)} token types")
        return cls(tokens, types)

    @property
    def ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    def is_special(self, i: int) -> bool:
        return self.types[i] in (UNKNOWN, CONTROL, USER_DEFINED)

    def add_special_tokens(self, tokenizer: Tokenizer) -> None:
        """User-defined tokens stay in decoded text, the others may be left out of it."""
        special = [i for i in range(len(self.tokens)) if self.is_special(i)]
        hidden = [self.types[i] != USER_DEFINED for i in special]
        tokenizer.add_tokens(
            [AddedToken(self.tokens[i], normalized=False, special=h) for i, h in zip(special, hidden, strict=True)]
        )


def _byte_level(vocabulary: _Vocabulary, splitting: Splitting, merges: Sequence[str]) -> Tokenizer:
    pairs = [_pair(merge) for merge in merges]
    try:
        model = models.BPE(vocab=vocabulary.ids, merges=pairs, ignore_merges=splitting.whole_words)
    except Exception as error:  # the library raises a bare Exception, which names the merge
        raise BadCheckpoint(f"tokenizer.ggml.merges contradict the vocabulary: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitting.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge[1:].partition(" ")  # a merge may begin with a space, never be split there
    if not right:
        raise BadCheckpoint(f"a merge must be two tokens joined by a space; got {merge!r}")
    return merge[0] + left, right


def _sentencepiece(vocabulary: _Vocabulary, metadata: Mapping[str, Any]) -> Tokenizer:
    scores = _need(metadata, "tokenizer.ggml.scores")
    if len(scores) != len(vocabulary.tokens):
        raise BadCheckpoint(f"the vocabulary has {len(vocabulary.tokens)} tokens, but {len(scores)} scores")
    bytes_left_out = {f"<0x{byte:02X}>" for byte in range(256)}.difference(vocabulary.tokens)
    if bytes_left_out:
        raise UnsupportedModel(f"the vocabulary must have a token for each byte; {len(bytes_left_out)} have none")
    merges = _merges_by_score(vocabulary, scores)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary.ids, merges=merges, byte_fallback=True))
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    visible = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), visible]) if prefix else visible
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def _merges_by_score(vocabulary: _Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece merges any two neighbours that form a token, the best score first: the same as a ranked list."""
    ids = vocabulary.ids
    ranked = []
    for i, token in enumerate(vocabulary.tokens):
        if vocabulary.is_special(i):
            continue
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[i], i, cut, token))
    return [(token[:cut], token[cut:]) for _, _, cut, token in sorted(ranked)]


def _splitting(metadata: Mapping[str, Any]) -> Splitting:
    name = metadata.get("tokenizer.ggml.pre")
    if name not in SPLITTINGS:
        raise UnsupportedModel(f"tokenizer.ggml.pre {name!r} is not supported; supported: {', '.join(SPLITTINGS)}")
    return SPLITTINGS[name]


def _add_bos(tokenizer: Tokenizer, vocabulary: _Vocabulary, bos: int | None) -> None:
    if bos is None or not 0 <= bos < len(vocabulary.tokens):
        raise BadCheckpoint(f"a BOS token is to be added, but tokenizer.ggml.bos_token_id is {bos}")
    token = vocabulary.tokens[bos]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", "$B"], special_tokens=[(token, bos)]
    )


def _need(metadata: Mapping[str, Any], key: str) -> Any:
    if key not in metadata:
        raise BadCheckpoint(f"the metadata must have {key!r} to tokenise text")
    return metadata[key]
