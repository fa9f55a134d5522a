"""A plan is made of the compiler's figures where there are some, and of its refusal where it refuses."""

from collections.abc import Sequence

import pytest

from capacity.deployments import BF16, work_of
from onepass.capacity.chips import Target
from onepass.capacity.compiler import Compiled
from onepass.capacity.deployment import Deployment
from onepass.capacity.document import document
from onepass.capacity.estimate import Question, answer
from onepass.capacity.roofline import EFFICIENCY
from onepass.engine.config import EngineConfig
from onepass.engine.programs.builder import Program
from onepass.models.known import known_config


def question(model: str = "qwen3-0.6b", target: str = "v6e:1x1", tp: int | None = None) -> Question:
    config = known_config(model)
    return Question(model, config, BF16, Target.parse(target), work_of(model), EngineConfig(mode="extend"), tp, 1.0)


def too_large(deployment: Deployment, programs: Sequence[Program]) -> list[Compiled]:
    return [Compiled(program, does_not_fit="Ran out of memory in memory space hbm") for program in programs]


def compiled_with(cycles: float) -> object:
    """A compiler that expects so many cycles of every program, and needs a GiB for temporaries."""

    def compile_(deployment: Deployment, programs: Sequence[Program]) -> list[Compiled]:
        there = deployment.parts.cost.weight_bytes + deployment.parts.pool_bytes
        return [Compiled(p, 3.0, there * (p.kind == "step"), 0, 1 << 30, 7, cycles, 1e12) for p in programs]

    return compile_


def test_what_the_compiler_finds_too_large_does_not_fit() -> None:
    made = document(answer(question(), too_large))
    assert (made["fits"], made["why_not"]) == (False, "Ran out of memory in memory space hbm")
    assert (made["items_per_second"], made["cost"]["per_million_items"], made["limits"]) == (None, None, None)
    assert document(answer(question(), None))["fits"], "the engine's estimate alone would have said yes"


def test_the_compilers_bytes_take_the_place_of_the_estimate() -> None:
    made = document(answer(question(), compiled_with(1e6)))  # type: ignore[arg-type]
    each = made["per_device"]
    assert (each["temporaries"], each["other"]) == (1 << 30, 3 * 7)
    assert each["source"] == "the compiler, for the programs that the workload runs"
    assert made["compile_seconds"] == 3 * 3.0
    kinds = [one["name"].split("-")[0] for one in made["programs"]]
    assert kinds == ["step", "step", "vocabulary"], "of the context, which nothing is read at, and of the items"


@pytest.mark.parametrize(
    ("cycles", "basis"), [(1e6, f"{EFFICIENCY:.1%} of the roofline"), (1e9, "the compiler's schedule")]
)
def test_the_slower_of_two_predictions_counts(cycles: float, basis: str) -> None:
    p = document(answer(question(), compiled_with(cycles)))["prediction"]  # type: ignore[arg-type]
    assert p["basis"] == basis
    assert p["request_ms"] == max(p["at_efficiency_ms"], p["scheduled_ms"]) > p["roofline_ms"]


def test_the_cycles_of_a_chip_that_are_not_known_are_not_guessed() -> None:
    p = document(answer(question(target="v7x:1x1x1"), compiled_with(1e9)))["prediction"]  # type: ignore[arg-type]
    assert p["scheduled_ms"] is None


def test_copies_score_more_items_in_the_same_time() -> None:
    one, four = (document(answer(question(target=name, tp=1), None)) for name in ("v6e:1x1", "v6e:2x2"))
    assert four["items_per_second"] == pytest.approx(4 * one["items_per_second"])
    assert four["prediction"]["request_ms"] == one["prediction"]["request_ms"]
    assert four["cost"]["per_million_items"] == pytest.approx(one["cost"]["per_million_items"])


def test_what_the_engine_would_choose_by_itself_stands_beside_the_best() -> None:
    """Its rule goes by the weights alone: 7.5 GiB fit a chip of 16, but not with the pool."""
    small, large = (
        document(answer(question(name, "v5e:2x2"), None))["division"] for name in ("qwen3-0.6b", "qwen3-4b")
    )
    assert (small["tp"], small["engine_chooses"]["tp"], small["engine_chooses"]["dp"]) == (1, 1, 4)
    assert (large["tp"], large["engine_chooses"]["tp"], large["engine_chooses"]["dp"]) == (2, 1, 4)
    assert document(answer(question("qwen3-8b", "v5e:1x1"), None))["division"]["engine_chooses"] is None
