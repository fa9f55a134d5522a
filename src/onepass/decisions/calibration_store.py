"""Which calibration belongs to a model: the user's own fit, a model's `temperatures.json` or `decision_config.json`.

A user's fit is a file per model in the user's data folder, written by `onepass calibrate`. The files of a model hold
temperatures only: `temperatures.json` one per question type, `decision_config.json` one for all.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onepass.decisions.calibration import Calibration, TypeCalibration, calibration_from
from onepass.decisions.question_format import TYPES
from onepass.decisions.questions import QUESTION_TYPES, QuestionType
from onepass.errors import ConfigError


def calibrations_dir() -> Path:
    from platformdirs import user_data_path

    return user_data_path("onepass") / "calibrations"


def stored_path(model: str, folder: Path | None = None) -> Path:
    """The file of a model's fit; names of models are paths and hub names, so anything else becomes a dash."""
    return (folder or calibrations_dir()) / (re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-.") + ".json")


def find_calibration(model: str, model_folder: Path | None, folder: Path | None = None) -> Calibration | None:
    """The user's fit for the model, else what lies in the model's own folder, else None."""
    stored = stored_path(model, folder)
    if stored.is_file():
        return read_calibration(stored)
    if model_folder is None or not model_folder.is_dir():
        return None
    return _own_temperatures(model_folder / "temperatures.json") or _own_config(model_folder / "decision_config.json")


def read_calibration(path: Path) -> Calibration:
    return calibration_from(_json(path), path.name)


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Whole or not at all: another process may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(number, "w", encoding="utf-8") as file:
        json.dump(calibration.to_dict(), file, indent=2)
        file.write("\n")
    os.replace(name, path)


def _own_temperatures(path: Path) -> Calibration | None:
    """Temperatures by question type, at the top or under `temperatures`."""
    if not path.is_file():
        return None
    data = _json(path)
    data = data.get("temperatures", data) if isinstance(data, Mapping) else data
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path.name} must be an object with a temperature per question type")
    types: dict[QuestionType, TypeCalibration] = {
        TYPES[kind]: TypeCalibration(value) for kind, value in data.items() if kind in TYPES
    }
    return Calibration(f"the model's {path.name}", types) if types else None


def _own_config(path: Path) -> Calibration | None:
    if not path.is_file():
        return None
    data = _json(path)
    temperature = data.get("temperature") if isinstance(data, Mapping) else None
    if isinstance(temperature, Mapping):
        types = {TYPES[kind]: TypeCalibration(value) for kind, value in temperature.items() if kind in TYPES}
        return Calibration(f"the model's {path.name}", types)
    if temperature is None:
        return None
    return Calibration(f"the model's {path.name}", {kind: TypeCalibration(temperature) for kind in QUESTION_TYPES})


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path.name} must be JSON; {error}") from error


def chosen_calibration(choice: Path | str) -> Calibration | None:
    """None for "none", else the file, which `onepass calibrate` wrote."""
    if choice == "none":
        return None
    if not Path(choice).is_file():
        raise ConfigError(f"calibration must be auto, none or a file of onepass calibrate; there is no {choice}")
    return read_calibration(Path(choice))
