"""Every example runs as a user would run it, in a process of its own with the real default model, and says what it
should: the texts are chosen so that SmolLM2-135M gets them right."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
MOST_LINES = 40

SAYS = {
    "score": [
        "4 items · smollm2-135m · mode packed",
        "year! S… ' positive' 0.78",
        "time. Sentim… ' positive' 0.27",
        "Sentiment:   ' positive' 0.54",
        "minutes. Sent… ' positive' 0.30",
    ],
    "rank": [
        "what causes the tides?\n    -7.78",
        "  [1] Yeast eats sugar",
        "what makes metal rust?\n   -13.95",
    ],
    "classify": [
        "Where is the station?      English",
        "Où est la gare ?           French",
        "Wo ist der Bahnhof?        German",
        "¿Dónde está la estación?   Spanish",
    ],
    "contexts": [
        "positive  The best movie",
        "negative  It was a complete waste",
        "negative  I walked out",
        "positive  A wonderful film",
        "negative  Boring",
        "a released context is an error",
    ],
    "multiple_choice": [
        "What do bees make? honey (log P -8.8",
        "the Red Planet? Mars (log P -0.8",
        "What falls from clouds? rain (log P -7.",
    ],
    "evaluate_reranker": [
        "first stage   ndcg@3  0.544 (0.000 to 1.000)",
        "smollm2-135m  ndcg@3  1.000 (1.000 to 1.000)",
        "smollm2-135m gains 0.4564 ndcg@3 over first stage",
    ],
    "continuations": [
        "The early bird catches the worm\n",
        "Too many cooks spoil the broth\n",
        "A picture is worth a thousand words\n",
    ],
}


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SAYS.keys()


@pytest.mark.parametrize("name", SAYS)
def test_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < MOST_LINES


@pytest.mark.parametrize("name", SAYS)
@pytest.mark.usefixtures("built_kernels")
def test_example_runs_and_gets_its_texts_right(name: str, smollm2_gguf: Path, tmp_path: Path) -> None:
    """`smollm2_gguf` fetches the model first, so that a failed download is not an example's failure."""
    command = [sys.executable, "-X", "utf8", "-W", "error", str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for said in SAYS[name]:
        assert said in done.stdout
