"""All checks of one model in one dtype, in order: open, choose labels, run each case with its control, tell of it.

What each check compares is in `isolation`, `equivalence`, `continuations` and `torch_parity`; what is printed and kept
is `report`.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from onepass.engine.loaded import quantized
from onepass.errors import ConfigError
from onepass.evidence.tolerance import AGAINST_TORCH, BETWEEN_MODES, Dtype
from onepass.loading.checkpoint import Progress, silent
from onepass.loading.export import export
from onepass.loading.model import Model
from onepass.models.weights import Weights
from onepass.scorer import Scorer
from onepass.validate.continuations import continuation_cases
from onepass.validate.drift import drift_outcomes
from onepass.validate.equivalence import equivalence_cases
from onepass.validate.isolation import isolation_cases
from onepass.validate.outcome import Case, Outcome, run_case, skipped
from onepass.validate.rig import Likely, Rig, Serial, find_likely, without_sharp
from onepass.validate.settings import Settings
from onepass.validate.torch_parity import Torch, find_torch_python, torch_cases
from onepass.validate.workload import Workload, make_workload

LABELLED = 32  # items that labels are chosen by

Tell = Callable[[Outcome], None]


@dataclass(frozen=True)
class Asked:
    """Which model, and how it may be had; the fields of `Scorer.load`."""

    model: str
    revision: str | None = None
    offline: bool = False
    cache_dir: Path | None = None
    progress: Progress = silent
    tp: int | None = None  # None: as many devices as the model needs
    dp: int = 1


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


def validate(asked: Asked, dtype: Dtype, settings: Settings, tell: Tell) -> Run:
    """Load the model once and run everything on it; `tell` hears of each outcome as it comes."""
    with Scorer.load(
        asked.model,
        dtype=dtype,
        revision=asked.revision,
        offline=asked.offline,
        cache_dir=asked.cache_dir,
        progress=asked.progress,
        tp=asked.tp,
        dp=1,  # the rigs have replicas of their own
    ) as scorer:
        model, weights = scorer.model, scorer.weights
    return validate_loaded(model, weights, dtype, settings, tell, dp=asked.dp)


def validate_loaded(
    model: Model,
    weights: Weights,
    dtype: Dtype,
    settings: Settings,
    tell: Tell,
    sound: Rig | None = None,
    dp: int = 1,
) -> Run:
    """`sound` is the rig under test, with `dp` replicas; tests give one with a planted fault."""
    start = time.perf_counter()
    work = make_workload(model.config.vocab_size, settings, model.tokenizer.encode_query if model.tokenizer else None)
    oracle = Rig(model, weights, Likely([]))
    likely = find_likely(oracle, work.query, work.items[:LABELLED], settings.num_labels, settings.seed)
    serial = Serial(replace(oracle, likely=likely))
    work = without_sharp(serial.rig, work, LABELLED, settings.seed)
    sound = replace(sound, likely=likely) if sound else Rig(model, weights, likely, dp=dp)
    leaking = Rig(model, weights, likely, leaking=True, dp=dp)
    rigs = [sound, leaking, serial.rig]
    outcomes: list[Outcome] = []
    versions: dict[str, str] = {}

    def keep(outcome: Outcome) -> None:
        outcomes.append(outcome)
        tell(outcome)

    try:
        for case in _cases(work, settings, dtype, serial):
            keep(run_case(case, sound, leaking))
        if "torch" in settings.checks:
            for outcome in _torch_outcomes(work, settings, dtype, sound, leaking, versions):
                keep(outcome)
        if settings.quantize is not None:
            narrow = quantized(weights, settings.quantize)
            rigs += [replace(rig, weights=narrow, _scorers={}) for rig in (sound, leaking)]
            for outcome in drift_outcomes(work, settings, sound, *rigs[-2:]):
                keep(outcome)
    finally:
        for rig in rigs:
            rig.close()
    return Run(model.name, dtype, settings, outcomes, likely.labels, time.perf_counter() - start, versions)


def _cases(work: Workload, settings: Settings, dtype: Dtype, serial: Serial) -> Iterator[Case]:
    tolerance = BETWEEN_MODES[dtype]
    if "modes" in settings.checks:
        yield from equivalence_cases(work, settings, tolerance, serial)
    if "isolation" in settings.checks:
        yield from isolation_cases(work, settings, tolerance)
    if "continuations" in settings.checks:
        yield from continuation_cases(work, settings, tolerance, serial)


def _torch_outcomes(
    work: Workload, settings: Settings, dtype: Dtype, sound: Rig, leaking: Rig, versions: dict[str, str]
) -> Iterator[Outcome]:
    tolerance = AGAINST_TORCH[dtype]
    python = None if settings.torch == "off" else find_torch_python(settings)
    if python is None:
        why = "switched off" if settings.torch == "off" else f"no torch and transformers in {sys.executable}"
        if settings.torch == "require" or settings.only_torch:  # a run that checks nothing must not pass
            raise ConfigError(f"PyTorch is required and was not found: {why}; give --torch-python")
        yield skipped("against PyTorch", "serial and packed", tolerance, f"not run: {why}")
        return
    with tempfile.TemporaryDirectory(prefix="onepass-validate-") as scratch:
        export(sound.model.config, sound.weights, Path(scratch))
        torch = Torch(python, Path(scratch), dtype)
        for case in torch_cases(work, settings, tolerance, torch):
            yield run_case(case, sound, leaking)
        versions.update(torch.versions)
