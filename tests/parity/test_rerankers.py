"""Rerankers and classifiers score as in sentence-transformers and transformers, from the folders that those saved.

Needs the reference environment; without it these tests are skipped, and `engine.encoding.test_classes` and
`loading.rerankers.test_method` remain. Folders are made once. Every comparison has a control that must fail.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onepass import Scorer
from reference.cross_encoders import ARCHITECTURES, make

TOLERANCE = 1e-4
Pairs = list[list[str]]


@pytest.fixture(scope="module")
def folders(
    checkpoint: Callable[[str], Path], reference_python: Path | None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    if reference_python is None:
        pytest.skip("no reference environment: PyTorch was not cheap to install here")
    out = tmp_path_factory.mktemp("rerankers")
    make(reference_python, {name: checkpoint(name) for name in ARCHITECTURES}, out)
    return out


def expected(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    return value


def predicted(scorer: Scorer, pairs: Pairs, instruction: str | None = None) -> tuple[list[float], list[float]]:
    """Scores and raw scores."""
    return scorer.predict(pairs, instruction=instruction), scorer.predict(pairs, instruction=instruction, raw=True)


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_classifiers_equal_transformers(folders: Path, name: str, labels: int) -> None:
    folder = folders / f"{name}-classifier-{labels}"
    said = expected(folder)
    with Scorer.load(str(folder), dtype="float32") as scorer:
        for mode in ("serial", "packed"):
            ours = [scorer.score(ids[:1], [ids[1:]], mode=mode).logits[0] for ids in said["sequences"]]
            np.testing.assert_allclose(ours, said["logits"], atol=TOLERANCE)
        early = [scorer.score(ids[:1], [ids[1:-1]]).logits[0] for ids in said["sequences"][:3]]
    assert np.abs(np.array(early) - said["logits"][:3]).max() > 50 * TOLERANCE, "one token early is noticed"


@pytest.mark.parametrize("name", ["difference", "prompted", "single", "classifier"])
def test_cross_encoders_equal_sentence_transformers(folders: Path, name: str) -> None:
    said = expected(folders / name)
    with Scorer.load(str(folders / name), dtype="float32") as scorer:
        scores, raw = predicted(scorer, said["pairs"])
        np.testing.assert_allclose(scores, said["scores"], atol=TOLERANCE)
        np.testing.assert_allclose(raw, said["raw"], atol=TOLERANCE)
        instructed, _ = predicted(scorer, said["pairs"], "Be strict")
        np.testing.assert_allclose(instructed, said["instructed"], atol=TOLERANCE)
    assert np.abs(np.array(said["instructed"]) - said["scores"]).max() > 10 * TOLERANCE


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("chat_template.jinja", "\n<Query>", "\n\n<Query>"),
        ("1_LogitScore/config.json", "17", "18"),
        ("1_LogitScore/config.json", "5", "6"),
        ("config_sentence_transformers.json", "Sigmoid", "Identity"),
    ],
    ids=["newline", "false label", "true label", "activation"],
)
def test_what_the_files_say_matters(folders: Path, tmp_path: Path, file: str, old: str, new: str) -> None:
    """The control: with one file changed the same comparison fails by far."""
    folder = Path(shutil.copytree(folders / "difference", tmp_path / "changed"))
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    said = expected(folder)
    with Scorer.load(str(folder), dtype="float32") as scorer:
        scores, _ = predicted(scorer, said["pairs"])
    assert np.abs(np.array(scores) - said["scores"]).max() > 10 * TOLERANCE
