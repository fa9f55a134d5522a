"""`onepass plan` answers for hardware that is not here: as a document, as a table, and by its exit status."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from onepass.capacity import compiler
from onepass.cli import plan
from onepass.cli.main import main

GIB = 1 << 30


def planned(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == status
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


def test_the_document_says_what_fits_how_fast_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    made = planned(capsys, "random:qwen3-4b", "--target", "v6e:2x2", "--no-compile", "--price", "2.5")
    assert (made["object"], made["fits"], made["compiled"], made["why_not"]) == ("plan", True, False, None)
    each = made["per_device"]
    assert each["weights"] == 2 * made["parameters"]
    assert each["total"] == sum(each[name] for name in ("weights", "pool", "temporaries", "other"))
    assert each["spare"] == each["available"] - each["total"] > 0
    assert (made["division"]["tp"], made["division"]["dp"]) == (1, 4)
    assert made["mode"] == "packed"
    assert made["items_per_second"] == made["prediction"]["items_per_second"]
    assert made["items_per_second"] < made["prediction"]["roofline_items_per_second"]
    cost = made["cost"]
    assert cost["per_million_items"] == pytest.approx(4 * 2.5 / 3600 / made["items_per_second"] * 1e6)
    assert "not compiled: roofline only" in made["assumptions"]
    assert any("not measured on this chip" in told for told in made["assumptions"])


@pytest.mark.parametrize("target", ["h100", "h200:2", "l4", "rtx-pro-6000", "rtx-4090"])
def test_gpus_are_planned_by_roofline_alone_and_it_is_said(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "random:qwen3-0.6b", "--target", target]) == 0
    told = capsys.readouterr().out
    assert "not compiled: roofline only" in told
    assert "items/s" in told


def test_a_model_that_does_not_fit_is_a_report_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    made = planned(capsys, "random:qwen3-8b", "--target", "v5e:1x1", "--no-compile", status=1)
    assert (made["fits"], made["items_per_second"], made["prediction"]) == (False, None, None)
    assert "GiB" in made["why_not"]
    assert made["per_device"]["weights"] > 15 * GIB
    assert made["per_device"]["spare"] < 0, "and by how much"
    assert main(["plan", "random:qwen3-8b", "--target", "l4"]) == 1
    assert "fits         no: " in capsys.readouterr().out


def test_sizes_and_modes_are_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    made = planned(
        capsys, "random:qwen3-0.6b", "--target", "h100", "--mode", "extend", "--query-tokens", "100", "--items", "7",
        "--item-tokens", "30", "--dtype", "float32",
    )  # fmt: skip
    assert (made["mode"], made["dtype"], made["workload"]["items"]) == ("extend", "float32", 7)
    assert [(step["count"], step["tokens"], step["readouts"]) for step in made["steps"]] == [(1, 100, 0), (1, 210, 7)]
    assert all(step["rung"] in made["rungs"] for step in made["steps"])
    assert made["per_device"]["weights"] == 4 * made["parameters"]


def test_an_adapter_is_planned_by_its_shapes(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A LoRA changes nothing; a head that it brings takes the place of the LM head; another model's is refused."""
    folder, adapter, target = (
        str(checkpoint("qwen3-untied")),
        tmp_path / "lora",
        ("--target", "h100", "--query-tokens", "64", "--items", "4"),
    )
    adapter.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "org/base"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))

    def write(columns: int, **tensors: np.ndarray) -> None:
        module = "base_model.model.model.layers.0.self_attn.q_proj"
        pair = {"A": np.ones((2, columns), np.float32), "B": np.ones((64, 2), np.float32)}
        named = {f"{module}.lora_{side}.weight": value for side, value in pair.items()}
        save_file({**named, **tensors}, adapter / "adapter_model.safetensors")

    plain = planned(capsys, folder, *target)
    write(48)
    merged = planned(capsys, folder, *target, "--adapter", str(adapter))
    assert (merged["model"], merged["parameters"]) == ("qwen3-untied+lora", plain["parameters"])
    write(48, **{"base_model.model.score.weight": np.ones((3, 48), np.float32)})
    headed = planned(capsys, folder, *target, "--adapter", str(adapter))
    vocabulary = json.loads((Path(folder) / "config.json").read_text())["vocab_size"]
    assert plain["parameters"] - headed["parameters"] == (vocabulary - 3) * 48
    write(40)
    assert main(["plan", folder, *target, "--adapter", str(adapter)]) == 2
    assert "the adapter lora (it was trained on org/base) does not fit qwen3-untied" in capsys.readouterr().err
    assert main(["plan", folder, *target, "--adapter", str(tmp_path)]) == 2
    assert "adapter_config.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--target", "v6f:2x2"], "a target is one of v5e, v5p, v6e, v7x"),
        (["--target", "v6e:2x2x2"], "v6e takes 2 sizes"),
        (["--target", "v6e:2x2", "--tp", "3"], "tp must be one of 1, 2, 4 on v6e:2x2; got 3"),
        (["--target", "v6e:4x4", "--tp", "16"], "tp must be one of 1, 2, 4, 8 on v6e:4x4; got 16"),
        (["--target", "h100", "--workload", "nonsense"], "workload must be one of contract"),
        (["--target", "h100", "--query-tokens", "9000"], "8,192"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "smollm2-135m", "--no-compile", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert says in told.err
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["--target", "h100", "--price", "-1"], ["--target", "h100", "--tp", "0"]])
def test_options_that_cannot_be_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["plan", *arguments])
    assert stop.value.code == 2


def test_a_tpu_without_its_compiler_says_what_to_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--target", "v6e:1x1", "--libtpu", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert f"pip install --no-deps --target {tmp_path} libtpu" in told
    assert told.index("--no-deps") < told.index("onepass[plan]") < told.index("--no-compile")
    assert str(plan.LIBTPU) == compiler.DEFAULT_FOLDER, "where it is looked for is where the message puts it"


def test_public_models_are_planned_without_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onepass.loading.source.hub_folder", lambda *_, **__: pytest.fail("asked the hub"))
    made = planned(capsys, "Qwen/Qwen3-8B", "--target", "h100:4", "--cache-dir", str(tmp_path))
    assert (made["model"], made["parameters"], made["fits"]) == ("Qwen/Qwen3-8B", 8_190_735_360, True)
    assert any("onepass's own copy of its published config.json" in told for told in made["assumptions"])
    made = planned(capsys, "random:qwen3-8b", "--target", "h100:4")
    assert not any("published config.json" in told for told in made["assumptions"])


def test_a_revision_is_read_from_the_hub(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["Qwen/Qwen3-8B", "--target", "h100", "--revision", "main", "--offline", "--cache-dir", str(tmp_path)]
    assert main(["plan", *arguments]) == 2
    assert "offline" in capsys.readouterr().err


def test_there_is_one_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    """Divisions are compared with the best of them; only the prediction is in items a second."""
    made = planned(capsys, "random:qwen3-4b", "--target", "h100:4")
    rates = {one["tp"]: one["relative_rate"] for one in made["division"]["candidates"]}
    assert rates[made["division"]["tp"]] == max(rates.values()) == 1.0
    assert main(["plan", "random:qwen3-4b", "--target", "h100:4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "items/s" in line] == ["predicted", "roofline"]


def test_a_folder_needs_no_weights(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint("qwen3") / "config.json").read_bytes())
    made = planned(capsys, str(tmp_path), "--target", "h100", "--query-tokens", "50", "--items", "3")
    assert made["fits"]


def test_planning_four_billion_parameters_takes_little_memory() -> None:
    """Their weights alone would be 8 GB."""
    # VmHWM begins at the child's own start; ru_maxrss is inherited from whatever process forked it, however large.
    program = """
import pathlib, sys
from onepass.cli.main import main
code = main(["plan", "random:qwen3-4b", "--target", "v6e:2x4", "--no-compile"])
status = pathlib.Path("/proc/self/status").read_text().splitlines()
print(next(line for line in status if line.startswith("VmHWM:")))
sys.exit(code)
"""
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    kilobytes = int(made.stdout.splitlines()[-1].split()[1])
    assert 1 << 14 < kilobytes < 1 << 20


def test_a_tpu_is_planned_with_compiled_programs(capsys: pytest.CaptureFixture[str]) -> None:
    found = importlib.util.find_spec("libtpu")
    if found is None or found.origin is None:
        pytest.skip("needs libtpu")
    folder = str(Path(found.origin).parents[1])
    made = planned(
        capsys, "random:smollm2-135m?layers=2", "--target", "v6e:2x2", "--tp", "2", "--libtpu", folder,
        "--query-tokens", "64", "--items", "4", "--mode", "packed-segment",
    )  # fmt: skip
    assert (made["fits"], made["compiled"]) == (True, True)
    assert made["per_device"]["source"].startswith("the compiler")
    assert made["compile_seconds"] > 0
    assert made["prediction"]["scheduled_ms"] > 0
    assert made["programs"][0]["temporaries"] is not None
    assert made["prediction"]["request_ms"] >= made["prediction"]["at_efficiency_ms"]
