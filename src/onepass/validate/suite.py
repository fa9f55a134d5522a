"""All checks of one model in one dtype, in order: open, choose labels, run each case with its control, tell of it.

What each check compares is in `isolation`, `neighbours`, `equivalence`, `continuations` and `torch_parity`; what is
printed and kept is `report`.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from onepass.engine.config import EngineConfig
from onepass.engine.load import quantized
from onepass.errors import ConfigError
from onepass.evidence.model_source import ModelSource
from onepass.evidence.tolerance import AGAINST_TORCH, BETWEEN_MODES, Dtype
from onepass.loading.export import export
from onepass.validate.check import Case, Outcome, run_case, skipped
from onepass.validate.continuations import continuation_cases
from onepass.validate.drift import drift_outcomes, num_drift_outcomes
from onepass.validate.equivalence import equivalence_cases
from onepass.validate.harness import Harness, LikelyLabels, SerialOracle
from onepass.validate.isolation import isolation_cases
from onepass.validate.likely_labels import find_likely, without_sharp
from onepass.validate.settings import Settings
from onepass.validate.torch_parity import Torch, find_torch_python, torch_cases, torch_ways
from onepass.validate.workload import Workload, make_workload

LABELLED = 32  # items that labels are chosen by

Tell = Callable[[Outcome, int, int], None]  # an outcome, its number, and how many there will be


@dataclass(frozen=True)
class Run:
    """What came of validating one model in one dtype."""

    model: str
    dtype: Dtype
    settings: Settings
    outcomes: list[Outcome]
    labels: list[int]
    seconds: float
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]

    @property
    def passed(self) -> bool:
        return not self.failures


def validate(source: ModelSource, dtype: Dtype, settings: Settings, config: EngineConfig, tell: Tell) -> Run:
    """Load the model once and run everything on it, by engines of `config`; `tell` hears of each outcome."""
    rig = Harness(*source.load(dtype), LikelyLabels([]), config)
    rig.compile(settings.most_tokens, source.progress)
    return validate_rig(rig, dtype, settings, tell)


def validate_rig(rig: Harness, dtype: Dtype, settings: Settings, tell: Tell) -> Run:
    """`harness` has the scorer under test; it is closed in the end. Labels are found here."""
    start = time.perf_counter()
    python = _torch_python(settings)
    model = rig.model
    work = make_workload(model.config.vocab_size, settings, model.tokenizer.encode_query if model.tokenizer else None)
    # One sequence alone in a step is the oracle. Where requests are spread over replicas it is a scorer without them.
    oracle = rig if rig.config.dp in (None, 1) else replace(rig, config=replace(rig.config, dp=1), _scorers={})
    rigs = [rig, oracle]
    outcomes: list[Outcome] = []
    versions: dict[str, str] = {}
    try:
        likely = find_likely(oracle, work.query, work.items[:LABELLED], settings.num_labels, settings.seed)
        serial = SerialOracle(replace(oracle, likely=likely))
        work = without_sharp(serial.rig, work, LABELLED, settings.seed)
        sound = replace(rig, likely=likely, longest=settings.longest)
        leaking = replace(sound, leaking=True, _scorers={})
        rigs.append(leaking)
        cases = list(_cases(work, settings, dtype, serial))
        total = len(cases) + _num_torch_outcomes(settings, python)
        total += num_drift_outcomes(work, settings) if settings.quantize else 0

        def keep(outcome: Outcome) -> None:
            outcomes.append(outcome)
            tell(outcome, len(outcomes), total)

        for case in cases:
            keep(run_case(case, sound, leaking))
        for outcome in _torch_outcomes(work, settings, dtype, python, sound, leaking, versions):
            keep(outcome)
        if settings.quantize is not None:
            leaking.close()  # its pool makes room for theirs
            weights = quantized(rig.model, rig.weights, settings.quantize, settings.quantize_activations)
            how = (settings.quantize, settings.quantize_activations)
            rigs += [one.with_quantized(weights, *how) for one in (sound, leaking)]
            for outcome in drift_outcomes(work, settings, sound, *rigs[-2:]):
                keep(outcome)
    finally:
        for one in rigs:
            one.close()
    return Run(model.name, dtype, settings, outcomes, likely.labels, time.perf_counter() - start, versions)


def _cases(work: Workload, settings: Settings, dtype: Dtype, serial: SerialOracle) -> Iterator[Case]:
    tolerance = BETWEEN_MODES[dtype]
    if "modes" in settings.checks:
        yield from equivalence_cases(work, settings, tolerance, serial)
    if "isolation" in settings.checks:
        yield from isolation_cases(work, settings, tolerance)
    if "continuations" in settings.checks:
        yield from continuation_cases(work, settings, tolerance, serial)


def _torch_python(settings: Settings) -> Path | None:
    """None where PyTorch is not compared with. A run that checks nothing must not pass."""
    if "torch" not in settings.checks or settings.torch == "off":
        return None
    python = find_torch_python(settings)
    if python is None and (settings.torch == "require" or settings.only_torch):
        raise ConfigError(f"PyTorch is required and was not found: {_no_torch(settings)}; give --torch-python")
    return python


def _no_torch(settings: Settings) -> str:
    return "switched off" if settings.torch == "off" else f"no torch and transformers in {sys.executable}"


def _num_torch_outcomes(settings: Settings, python: Path | None) -> int:
    if "torch" not in settings.checks:
        return 0
    return 1 if python is None else len(torch_ways(settings))


def _torch_outcomes(
    work: Workload,
    settings: Settings,
    dtype: Dtype,
    python: Path | None,
    sound: Harness,
    leaking: Harness,
    versions: dict[str, str],
) -> Iterator[Outcome]:
    tolerance = AGAINST_TORCH[dtype]
    if "torch" not in settings.checks:
        return
    if python is None:
        yield skipped("against PyTorch", "serial and packed", tolerance, f"not run: {_no_torch(settings)}")
        return
    with tempfile.TemporaryDirectory(prefix="onepass-validate-") as scratch:
        export(sound.model.config, sound.weights, Path(scratch))
        torch = Torch(python, Path(scratch), dtype)
        for case in torch_cases(work, settings, tolerance, torch):
            yield run_case(case, sound, leaking)
        versions.update(torch.versions)
