"""The tokenizer in a GGUF file gives the ids that llama.cpp gives, and those of transformers wherever it is right.

The readers run in the reference environment where there is one; otherwise what they gave before is read from a file.
"""

import gzip
import json
import subprocess
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from loading.gguf.corpus import checksum, lines, sample
from loading.gguf.files import byte_level_vocabulary, sentencepiece_vocabulary, vocabularies, write_models
from onepass.errors import BadCheckpoint, UnsupportedModel
from onepass.loading.gguf.file import GgufFile
from onepass.loading.gguf.tokenizer import SPLITTINGS, tokenizer_from_gguf

REFERENCE = Path(__file__).parents[2] / "reference"
Ids = list[list[int]]


def read_by_others(python: Path, folder: Path, corpus: list[str], models: list[Path], *options: str) -> dict[str, Any]:
    (folder / "lines.json").write_text(json.dumps(corpus))
    arguments = [folder / "lines.json", folder / "ids.json", *models, *options]
    done = subprocess.run([python, REFERENCE / "gguf_tokenizers.py", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((folder / "ids.json").read_text())


def stored_values(name: str, corpus: list[str]) -> dict[str, Any]:
    values = json.loads(gzip.decompress((REFERENCE / "values" / name).read_bytes()))
    assert values["corpus_sha256"] == checksum(corpus), "the corpus changed: write the stored values again"
    assert values["versions"].keys() == {"transformers", "tokenizers", "xllamacpp"}
    return values


@pytest.fixture(scope="module")
def smollm2_ids(
    reference_python: Path | None, smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ids]:
    """Reader -> ids of every line of the corpus, with SmolLM2's own file."""
    if reference_python is None:
        (found,) = stored_values("gguf_tokenizer.json.gz", lines())["models"].values()
    else:
        folder = tmp_path_factory.mktemp("smollm2")
        (found,) = read_by_others(reference_python, folder, lines(), [smollm2_gguf])["models"].values()
    return found


@pytest.fixture(scope="module")
def llama_cpp_ids(reference_python: Path | None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ids]:
    """Vocabulary -> llama.cpp's ids of the sample, one small vocabulary for each way of splitting text."""
    if reference_python is None:
        found = stored_values("gguf_splitting.json.gz", sample())["models"]
    else:
        folder = tmp_path_factory.mktemp("splittings")
        models = write_models(folder)
        found = read_by_others(reference_python, folder, sample(), models, "--only", "llama.cpp")["models"]
    return {name: readers["llama.cpp"] for name, readers in found.items()}


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> Tokenizer:
    return tokenizer_from_gguf(GgufFile.open(smollm2_gguf).metadata)


def encode_all(tokenizer: Tokenizer, corpus: list[str]) -> Ids:
    return [tokenizer.encode(line, add_special_tokens=False).ids for line in corpus]


def differing(ours: Ids, theirs: Ids, corpus: list[str]) -> list[str]:
    return [line for line, a, b in zip(corpus, ours, theirs, strict=True) if a != b]


def has_spaced_foreign_digit(line: str) -> bool:
    """A space and then a digit that is not 0 to 9, such as " ½" or " ٣"."""
    return any(a == " " and not b.isascii() and unicodedata.category(b).startswith("N") for a, b in pairwise(line))


def test_the_corpus_is_large_and_varied() -> None:
    corpus = lines()
    assert len(corpus) > 2000
    assert len(set(corpus)) > 2000
    wanted = [
        "def ",
        "字",
        "الع",
        "👩‍👩‍👧‍👦",
        "\t",
        "\u00a0",
        "\r\n",
        "     ",
        "<|im_start|>",
        "don't",
        "हिन्दी",
        "Привет",
    ]
    assert [text for text in wanted if not any(text in line for line in corpus)] == []


def test_smollm2_gives_the_ids_of_llama_cpp(smollm2: Tokenizer, smollm2_ids: dict[str, Ids]) -> None:
    assert differing(encode_all(smollm2, lines()), smollm2_ids["llama.cpp"], lines()) == []


def test_smollm2_gives_the_ids_of_transformers_but_for_digits_that_it_does_not_split(
    smollm2: Tokenizer, smollm2_ids: dict[str, Ids]
) -> None:
    """SmolLM2 was trained with every digit on its own ("smollm" in its file), which transformers' GGUF loader ignores:
    it keeps a space and a foreign digit after it in one piece. llama.cpp does not, and neither do we."""
    odd = differing(encode_all(smollm2, lines()), smollm2_ids["transformers"], lines())
    assert [line for line in odd if not has_spaced_foreign_digit(line)] == []
    assert 20 < len(odd) < 60
    spaced = smollm2.encode(" ½", add_special_tokens=False).ids
    assert spaced == [*smollm2.encode(" ").ids, *smollm2.encode("½").ids]


@pytest.mark.parametrize("name", vocabularies())
def test_every_way_of_splitting_gives_the_ids_of_llama_cpp(name: str, llama_cpp_ids: dict[str, Ids]) -> None:
    tokenizer = tokenizer_from_gguf(vocabularies()[name])
    assert differing(encode_all(tokenizer, sample()), llama_cpp_ids[name], sample()) == []


def test_the_ways_of_splitting_are_told_apart_by_the_sample(llama_cpp_ids: dict[str, Ids]) -> None:
    assert len({json.dumps(ids) for ids in llama_cpp_ids.values()}) == len(llama_cpp_ids) == len(vocabularies())


def test_smollm2_text_comes_back(smollm2: Tokenizer) -> None:
    text = "<|im_start|>user\nDon't  stop — 東京 in 2024 👩‍👩‍👧‍👦!<|im_end|>"
    assert smollm2.decode(smollm2.encode(text).ids, skip_special_tokens=False) == text
    assert smollm2.encode(text).ids[0] == 1


@pytest.mark.parametrize("make", [sentencepiece_vocabulary, lambda: sentencepiece_vocabulary(False)])
def test_sentencepiece_text_comes_back(make: Callable[[], dict[str, Any]]) -> None:
    tokenizer = tokenizer_from_gguf(make())
    for text in ("the water", "  two  spaces ", "東京 é\n", "x"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def with_keys(vocabulary: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A vocabulary with keys replaced, or left out where the new value is None."""
    changed = vocabulary | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in changed.items() if value is not None}


@pytest.mark.parametrize(
    ("vocabulary", "bos"),
    [
        (byte_level_vocabulary("smollm"), []),
        (byte_level_vocabulary("qwen2"), []),
        (byte_level_vocabulary("llama-bpe"), [1]),
        (with_keys(byte_level_vocabulary("llama-bpe"), add_bos_token=False), []),
        (with_keys(byte_level_vocabulary("qwen2"), add_bos_token=True), [1]),
        (with_keys(byte_level_vocabulary("qwen2"), add_bos_token=True, add_eos_token=True, bos_token_id=0), [0]),
        (sentencepiece_vocabulary(), [1]),
        (with_keys(sentencepiece_vocabulary(), add_bos_token=False), []),
    ],
)
def test_bos_is_added_by_the_rules_of_llama_cpp(vocabulary: dict[str, Any], bos: list[int]) -> None:
    tokenizer = tokenizer_from_gguf(vocabulary)
    plain = tokenizer.encode("the water", add_special_tokens=False).ids
    assert tokenizer.encode("the water").ids == [*bos, *plain]
    assert plain[:1] != [1]


def test_special_tokens_are_those_the_file_marks() -> None:
    """llama.cpp also makes a plain "</s>" special; Qwen's own tokenizer, which has one, does not."""
    plain = byte_level_vocabulary("qwen2")
    plain["tokenizer.ggml.tokens"] = [*plain["tokenizer.ggml.tokens"], "</s>"]
    plain["tokenizer.ggml.token_type"] = [*plain["tokenizer.ggml.token_type"], 1]
    tokenizer = tokenizer_from_gguf(plain)
    last = len(plain["tokenizer.ggml.tokens"]) - 1
    assert last not in tokenizer.encode("a</s>").ids
    assert tokenizer.encode("<|im_start|><think>").ids == [1, 3]
    assert tokenizer.decode([1, 3]) == "<think>"  # control tokens are left out of text, user-defined ones are not


def test_an_unnamed_token_takes_its_place() -> None:
    vocabulary = byte_level_vocabulary("gpt-2")
    vocabulary["tokenizer.ggml.tokens"] = [*vocabulary["tokenizer.ggml.tokens"], "", ""]
    vocabulary["tokenizer.ggml.token_type"] = [*vocabulary["tokenizer.ggml.token_type"], 5, 5]
    assert tokenizer_from_gguf(vocabulary).get_vocab_size() == len(vocabulary["tokenizer.ggml.tokens"])


@pytest.mark.parametrize("pre", ["tekken", "gpt-4o", None])
def test_an_unknown_way_of_splitting_lists_those_supported(pre: str | None) -> None:
    with pytest.raises(
        UnsupportedModel, match=f"tokenizer.ggml.pre {pre!r} is not supported; supported: default, gpt-2"
    ):
        tokenizer_from_gguf(with_keys(byte_level_vocabulary("gpt-2"), pre=pre))
    assert {"default", "gpt-2", "smollm", "qwen2", "llama-bpe", "llama3"} <= SPLITTINGS.keys()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "t5"}, UnsupportedModel, "tokenizer.ggml.model 't5' is not supported; supported: gpt2, llama"),
        ({"tokens": None}, BadCheckpoint, "must have 'tokenizer.ggml.tokens'"),
        ({"merges": None}, BadCheckpoint, "must have 'tokenizer.ggml.merges'"),
        ({"merges": ["zz qq"]}, BadCheckpoint, "merges contradict the vocabulary"),
        ({"merges": ["ab"]}, BadCheckpoint, "a merge must be two tokens joined by a space; got 'ab'"),
        ({"token_type": [1, 1]}, BadCheckpoint, "tokens, but 2 token types"),
        (
            {"tokens": ["a", "b", "a"], "token_type": None},
            BadCheckpoint,
            "must list every token once; it lists 'a' 2 times",
        ),
        ({"add_bos_token": True, "bos_token_id": None}, BadCheckpoint, "bos_token_id is None"),
        ({"add_bos_token": True, "bos_token_id": 10**6}, BadCheckpoint, "bos_token_id is 1000000"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_says_why(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        tokenizer_from_gguf(with_keys(byte_level_vocabulary("gpt-2"), **changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(("changes", "message"), [({"scores": None}, "scores"), ({"scores": [0.0]}, "but 1 scores")])
def test_sentencepiece_needs_a_score_for_every_token(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadCheckpoint, match=message):
        tokenizer_from_gguf(with_keys(sentencepiece_vocabulary(), **changes))


def test_sentencepiece_needs_a_token_for_every_byte() -> None:
    vocabulary = sentencepiece_vocabulary()
    renamed = [token.replace("<0x8", "<byte 8") for token in vocabulary["tokenizer.ggml.tokens"]]
    with pytest.raises(UnsupportedModel, match="a token for each byte; 16 have none"):
        tokenizer_from_gguf(with_keys(vocabulary, tokens=renamed))
