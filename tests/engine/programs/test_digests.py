"""Lowered programs are those whose digests are stored: a move of code changes none of them."""

import json

import jax
import pytest

from engine.programs.digests import CASES, STORED, Case, digest, digests_of

KEPT = json.loads(STORED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lowered_programs_are_unchanged(case: Case) -> None:
    if KEPT["jax"] != jax.__version__:
        pytest.skip(f"digests are of jax {KEPT['jax']}; this is {jax.__version__}")
    assert digests_of(case) == KEPT["programs"][str(case)], (
        "programs have changed; where that is meant: python tests/engine/programs/digests.py --write"
    )


def test_every_stored_digest_is_compared() -> None:
    assert list(KEPT["programs"]) == [str(case) for case in CASES]
    assert sum(len(programs) for programs in KEPT["programs"].values()) >= 12


def test_names_do_not_count_and_operations_do() -> None:
    program = "func.func @main(%arg0: f32) { call @{name}(%arg0) : {operation} }"
    named, renamed, changed = (
        digest(program.replace("{name}", name).replace("{operation}", operation))
        for name, operation in (("silu", "add"), ("swish", "add"), ("silu", "multiply"))
    )
    assert named == renamed
    assert named != changed
