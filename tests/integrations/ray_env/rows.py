"""Rows for `ScoreRows`, four per query, and how they are scored."""

import os
import tempfile
from pathlib import Path
from typing import Any

PROGRAMS = Path(tempfile.gettempdir()) / f"onepass-test-programs-{os.getuid()}"
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_batch_tokens": 64, "programs_dir": PROGRAMS}
SET: dict[str, Any] = {"label_token_ids": [3, 40], "apply_softmax": True}
TOLERANCE = 1e-5  # batches are other steps: rounding
WRONG_ROW = 6


def numbered_rows(with_error: bool = False) -> list[dict[str, Any]]:
    """`with_error`: the query of row `WRONG_ROW` is empty."""
    return [
        {
            "id": number,
            "query": [] if with_error and number == WRONG_ROW else [5 + number // 4] * 20,
            "items": [[7, 8, number + 9], [number + 30]],
        }
        for number in range(16)
    ]
