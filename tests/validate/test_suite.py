"""The suite is green on a sound engine and red on a broken one: planted faults are found by the checks for them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from onepass.engine.config import EngineConfig
from onepass.evidence.tolerance import AGAINST_TORCH, BETWEEN_MODES, SHARP
from onepass.loading.export import export
from onepass.scorer import Scorer
from onepass.validate.check import Case, Outcome, run_case
from onepass.validate.continuations import continuation_cases
from onepass.validate.equivalence import delimiter, empty_items, equivalence_cases
from onepass.validate.harness import Harness, LikelyLabels, SerialOracle
from onepass.validate.isolation import isolation_cases
from onepass.validate.likely_labels import find_likely, without_sharp
from onepass.validate.neighbours import between_requests
from onepass.validate.settings import Settings
from onepass.validate.suite import validate_rig
from onepass.validate.torch_parity import Torch, torch_cases
from onepass.validate.workload import Workload, make_workload

FEW = Settings(counts=(8,), query_tokens=40, item_tokens=8, ways=("packed-segment",), torch="off")

# Three rungs, a small pool, and no programs from disk.
CONFIG = EngineConfig(keep_programs=False, cache_bytes=1 << 22, max_batch_tokens=160)


class Bench:
    """A tiny model with the rigs of a validation, kept for all tests of a module so that programs compile once."""

    def __init__(self, folder: Path, settings: Settings = FEW) -> None:
        scorer = Scorer.load(str(folder), dtype="float32")
        scorer.close()
        self.settings = settings
        self.work: Workload = make_workload(scorer.model.config.vocab_size, settings)
        oracle = Harness(scorer.model, scorer.weights, LikelyLabels([]), CONFIG)
        likely = find_likely(oracle, self.work.query, self.work.items, settings.num_labels, settings.seed)
        self.sound = replace(oracle, likely=likely)
        self.serial = SerialOracle(self.sound)
        self.leaking = replace(self.sound, leaking=True, _scorers={})

    def run(self, cases: Iterator[Case] | list[Case], under_test: Harness | None = None) -> list[Outcome]:
        return [run_case(case, under_test or self.sound, self.leaking) for case in cases]

    def close(self) -> None:
        for rig in (self.sound, self.leaking):
            rig.close()


@pytest.fixture(scope="module")
def bench(checkpoint: Callable[[str], Path]) -> Iterator[Bench]:
    made = Bench(checkpoint("qwen3"))
    yield made
    made.close()


def test_isolation_checks_pass_and_their_controls_fail(bench: Bench) -> None:
    outcomes = bench.run(isolation_cases(bench.work, FEW, BETWEEN_MODES["float32"]))
    assert [o.note for o in outcomes if not o.passed] == []
    exact = [o for o in outcomes if o.name in ("same-length isolation", "isolation between requests")]
    assert [o.max_difference for o in exact] == [0.0, 0.0]
    assert all(o.control_difference and o.control_difference > 0.01 for o in exact)


def test_leaking_attention_fails_every_isolation_check(bench: Bench) -> None:
    cases = isolation_cases(bench.work, FEW, BETWEEN_MODES["float32"])
    outcomes = bench.run(list(cases), under_test=bench.leaking)
    assert {o.name for o in outcomes if o.passed} == set()
    assert {o.name for o in outcomes if not o.passed} == {
        "same-length isolation",
        "changed-length isolation",
        "order of items",
        "split over requests",
        "isolation between requests",
        "place in the step",
    }


def test_requests_that_did_not_share_a_step_prove_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_by_one(rig: Harness, way: str, requests: Any) -> Any:
        return [rig.run(way, [request])[0] for request in requests], len(requests)

    monkeypatch.setattr(Harness, "run_together", one_by_one)
    (found,) = bench.run([between_requests(bench.work, "packed-segment")])
    assert (found.status, found.note) == ("failed", "CheckFailed: 4 requests should have shared steps; they took 4")


def test_every_mode_and_size_runs_on_the_scorer_under_test(bench: Bench) -> None:
    """Only the dense mask has programs of its own."""
    ways = ("serial", "packed-segment", "chunked:2", "extend:3", "auto")
    assert len({id(bench.sound.scorer(way)) for way in ways}) == 1
    sized = {way: bench.sound.score(way, bench.work.query, bench.work.items) for way in ways}
    assert "4 copies of the context, at most 2 items each" in sized["chunked:2"].reason
    assert bench.sound.scorer("chunked").engine.config == bench.sound.scorer("chunked").engine.planner.config


def test_leaking_attention_fails_every_comparison_with_serial(bench: Bench) -> None:
    tolerance = BETWEEN_MODES["float32"]
    cases = list(continuation_cases(bench.work, FEW, tolerance, bench.serial))
    equivalent = equivalence_cases(bench.work, FEW, tolerance, bench.serial)
    cases += [
        c for c in equivalent if c.name in ("mode against serial", "delimiter", "empty items") and ":" not in c.way
    ]
    outcomes = bench.run(cases, under_test=bench.leaking)
    assert len(outcomes) == 5
    assert [o.name for o in outcomes if o.passed] == []


class WithWrongDelimiter(Harness):
    def score(self, way: str, query: Any, items: Any, **fields: Any) -> Any:
        fields["delimiter_token_id"] += 1
        return super().score(way, query, items, **fields)


def test_a_wrong_delimiter_is_found(bench: Bench) -> None:
    sound = bench.sound
    wrong = WithWrongDelimiter(sound.model, sound.weights, sound.likely, sound.config, _scorers=sound._scorers)
    check = delimiter(bench.work, 8, "packed-segment", BETWEEN_MODES["float32"], bench.serial)
    (right,) = bench.run([check])
    (found,) = bench.run([check], under_test=wrong)
    assert right.passed
    assert not found.passed
    assert "largest difference" in found.note


def test_a_sound_model_passes_in_bfloat16(checkpoint: Callable[[str], Path]) -> None:
    """In float32 the command's own test does the same."""
    scorer = Scorer.load(str(checkpoint("llama2")), dtype="bfloat16")
    scorer.close()
    told: list[tuple[Outcome, int, int]] = []
    rig = Harness(scorer.model, scorer.weights, LikelyLabels([]), CONFIG)
    run = validate_rig(rig, "bfloat16", FEW, lambda *outcome: told.append(outcome))
    assert [f"{o.name} ({o.case}): {o.note}" for o in run.failures] == []
    assert told == [(outcome, n + 1, len(run.outcomes)) for n, outcome in enumerate(run.outcomes)]
    assert {o.name for o in run.outcomes if o.status == "skipped"} == {"against PyTorch"}
    assert len({o.name for o in run.outcomes}) == 13


def test_empty_items_alone_are_scored_in_extend(bench: Bench) -> None:
    (found,) = bench.run([empty_items(bench.work, "extend", BETWEEN_MODES["float32"], bench.serial)])
    assert found.passed, found.note


def test_a_perturbed_weight_is_found_by_pytorch(bench: Bench, reference_python: Path | None, tmp_path: Path) -> None:
    if reference_python is None:
        pytest.skip("no reference environment: PyTorch was not cheap to install here")
    model, weights = bench.sound.model, bench.sound.weights
    for name, change in (("same", 0.0), ("perturbed", 0.05)):
        norm = weights.layers.mlp_norm.at[1].add(jnp.float32(change))
        export(model.config, replace(weights, layers=replace(weights.layers, mlp_norm=norm)), tmp_path / name)
        torch = Torch(reference_python, tmp_path / name, "float32")
        outcomes = bench.run(torch_cases(bench.work, FEW, AGAINST_TORCH["float32"], torch))
        assert [o.case.partition(",")[0] for o in outcomes] == ["serial", "packed-segment"]
        assert {o.passed for o in outcomes} == {name == "same"}, [o.note for o in outcomes]
        assert "torch" in torch.versions


def test_probabilities_compared_are_neither_negligible_nor_sharp(bench: Bench) -> None:
    """In 16 bits a sharp one would move by more than the tolerance, whoever computes it."""
    found = bench.serial.numbers(bench.work.query, bench.work.items)
    assert found.shape == (8, FEW.num_labels)
    assert np.median(found.max(axis=1)) > 0.01
    assert 0.05 < found.max() <= SHARP + 1e-4
    assert set(bench.sound.likely.text) <= set(bench.sound.likely.labels)


def test_items_after_which_a_label_is_sharp_give_way_to_others_of_their_length(bench: Bench) -> None:
    oracle = replace(bench.serial.rig, likely=LikelyLabels(list(range(200))))
    before = bench.work
    after = without_sharp(oracle, before, known=0, seed=0)

    def largest(work: Workload) -> np.ndarray:
        return np.exp(np.array(oracle.score("serial", work.query, work.items).logprobs)).max(axis=1)

    assert (largest(before) > SHARP).any()
    assert (largest(after) > SHARP).sum() < (largest(before) > SHARP).sum()
    assert [len(item) for item in after.items] == [len(item) for item in before.items]
    kept = largest(before) <= SHARP
    assert [item for item, k in zip(after.items, kept, strict=True) if k] == [
        item for item, k in zip(before.items, kept, strict=True) if k
    ]
