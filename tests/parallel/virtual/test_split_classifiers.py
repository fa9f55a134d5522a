"""A classification head over several devices: every device has it whole, and the classes' logits stay the same."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from checkpoints import make_checkpoint
from onepass import Scorer


def classifier(folder: Path) -> Path:
    make_checkpoint(folder, "qwen3-untied")
    tensors = load_file(folder / "model.safetensors")
    tensors["score.weight"] = tensors.pop("lm_head.weight")[[5, 17, 40]].copy()
    tensors["score.bias"] = np.array([0.5, -0.25, 0.0], np.float32)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    changes = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_a_split_classifier_scores_as_a_whole_one(tmp_path: Path) -> None:
    folder = str(classifier(tmp_path / "model"))
    scored = []
    for tp in (1, 2):
        with Scorer.load(folder, dtype="float32", tp=tp, dp=1) as scorer:
            result = scorer.score("Is it relevant?", [" The quick fox", " Paris"])
            scored.append((result.logits, result.scores))
    np.testing.assert_allclose(scored[1][0], scored[0][0], atol=1e-4)
    np.testing.assert_allclose(scored[1][1], scored[0][1], atol=1e-5)
    assert np.ptp(scored[0][0]) > 0.1, "the classes differ"
