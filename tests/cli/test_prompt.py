"""`onepass prompt`: what is printed is what the engine would run, without weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onepass.cli.main import main
from onepass.loading.model import open_model


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["prompt", *words, "--json", "--quiet"]) == 0
    out: dict[str, Any] = json.loads(capsys.readouterr().out)
    return out


def test_messages_are_printed_with_boundaries_and_read_out(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(checkpoint("qwen3"))
    (tmp_path / "chat.json").write_text('[{"role": "user", "content": "Is it a city? "}]')
    out = printed(capsys, folder, "--messages", str(tmp_path / "chat.json"), "--items", "Paris", "a fox")
    whole = [out["shared"]["text"] + item["text"] for item in out["items"]]
    assert whole[0] == "<|im_start|>user\nIs it a city? Paris<|im_end|>\n<|im_start|>assistant\n"
    tokenizer = open_model(folder).tokenizer
    assert tokenizer is not None
    for text, item in zip(whole, out["items"], strict=True):
        assert out["shared"]["token_ids"] + item["token_ids"] == tokenizer.encode_item(text)
        assert item["readout_position"] == len(tokenizer.encode_item(text)) - 1


def test_a_ranking_is_printed_in_the_models_words(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(checkpoint("qwen3"))
    out = printed(capsys, folder, "--rank", "--query", "capital", "--items", "Paris is in France.")
    assert out["readout"] == {"kind": "likelihood", "continuation": " capital"}
    (tmp_path / "t.toml").write_text(
        'method = "label"\n[label]\ncontext = "Q: {query} {instruction}\\n"\nitem = "D: {document}\\nA:"\n'
        'labels = [" yes"]\nreadout = "single_logit"\nscale = 5.0\nactivation = "sigmoid"\n'
    )
    words = [
        "--rank",
        "--query",
        "q",
        "--items",
        "d",
        "--template",
        str(tmp_path / "t.toml"),
        "--instruction",
        "be kind",
    ]
    out = printed(capsys, folder, *words)
    assert out["shared"]["text"] == "Q: q be kind\n"
    assert out["readout"] == {"kind": "single_logit", "scale": 5.0, "activation": "sigmoid", "labels": [" yes"]}


def test_a_ranking_by_messages_is_printed_with_what_is_read(
    smollm2_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chat.json").write_text('[{"role": "user", "content": "Is {item} a city? Answer yes or no."}]')
    words = [str(smollm2_gguf), "--rank", "--messages", str(tmp_path / "chat.json"), "--items", "Paris"]
    out = printed(capsys, *words)
    assert out["readout"] == {"kind": "label_probability", "labels": ["yes", "no"]}
    assert (out["shared"]["text"] + out["items"][0]["text"]).endswith(
        "<|im_start|>user\nIs Paris a city? Answer yes or no.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert main(["prompt", *words, "--instruction", "Be strict"]) == 2
    assert "give messages or instruction, not both" in capsys.readouterr().err


def test_the_table_has_special_tokens_and_the_token_that_is_read(
    checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prompt", str(checkpoint("llama3")), "--query", "Is it?", "--items", " yes", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "<|begin_of_text|>Is it?" in out
    assert "read at token" in out
    assert "' yes'" in out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--items", "a"], "give --query or --messages"),
        (["--query", "q", "--messages", "f", "--items", "a"], "give --query or --messages"),
        (["--query", "q", "--items", "a", "--instruction", "i"], "are for --rank"),
    ],
)
def test_wrong_options_exit_with_2(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompt", *words]) == 2
    assert reason in capsys.readouterr().err
