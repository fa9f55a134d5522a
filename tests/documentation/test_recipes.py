"""docs/recipes.md: every recipe is short, runs, and prints what the page shows."""

import contextlib
import doctest
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from documentation.test_readme import assert_same_output, blocks
from onepass import Scorer

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
MOST_LINES = 20
TASKS = ("A reranker", "A judge with a rubric", "A guard", "Many classes with long names", "A reward model")


def test_every_task_has_a_recipe_of_twenty_lines() -> None:
    sections = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
    assert tuple(sections) == TASKS
    for section in sections.values():
        (recipe,) = blocks(section, "pycon") + blocks(section, "python")
        assert len(recipe.splitlines()) <= MOST_LINES


def test_the_sessions_print_what_the_page_shows(smollm2_gguf: Path) -> None:
    """`smollm2_gguf` fetches the model first, so that a failed download is not the page's failure."""
    names: dict[str, object] = {}
    for example in doctest.DocTestParser().get_examples("\n".join(blocks(PAGE, "pycon"))):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(example.source, "recipes.md", "single"), names)
        assert_same_output(example.want, printed.getvalue())
    names["scorer"].close()  # type: ignore[attr-defined]


def test_the_reward_model_rewards_every_answer(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(checkpoint("qwen3"), tmp_path / "my-reward-model"))
    tensors = load_file(folder / "model.safetensors")
    tensors["score.weight"] = tensors["model.embed_tokens.weight"][5:6].copy()
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    changes = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "reward"}}
    (folder / "config.json").write_text(json.dumps({**config, **changes, "tie_word_embeddings": False}))
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(PAGE, "python")
    names: dict[str, object] = {}
    exec(compile(code, "recipes.md", "exec"), names)
    text = "<|im_start|>user\nName a city in France.<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n"
    with Scorer.load(str(folder)) as scorer:
        ids = [scorer.tokenizer.encode_item(text.format(answer)) for answer in names["answers"]]  # type: ignore[attr-defined]
        right = [scorer.score(one[:1], [one[1:]], mode="serial").scores[0][0] for one in ids]
    assert names["rewards"] == pytest.approx(right, abs=1e-4)
    assert names["best"] == names["answers"][right.index(max(right))]  # type: ignore[index]
