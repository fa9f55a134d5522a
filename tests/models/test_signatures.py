"""Shapes and dtypes that signatures state hold in every program: on CPUs, TPUs and Hopper GPUs, traced, not run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.programs.digests import STORED


@pytest.mark.extended
def test_programs_lower_with_checked_signatures_and_strict_promotion() -> None:
    process = Path(__file__).with_name("signature_process.py")
    done = subprocess.run([sys.executable, str(process)], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["errors"] == ["TypeCheckError", "TypePromotionError"], "the negative controls"
    assert answer["programs"] == json.loads(STORED.read_text(encoding="utf-8"))["programs"]
