"""`onepass bench` on a tiny model: the table, the JSON on the last line, the files, and mistakes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from onepass.bench.offline.profile import STAGES
from onepass.cli.bench.online import without_key
from onepass.cli.bench.options import KINDS, MIXED, MODES, WORKLOADS
from onepass.cli.main import main

SIZES = ["--query-tokens", "40", "--items", "8", "--item-tokens", "6"]
pytestmark = pytest.mark.usefixtures("small_ceilings")


def test_a_run_ends_with_one_json_document_and_leaves_its_files(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(
        ["bench", str(checkpoint("qwen3")), "--workload", "small", *SIZES, "--modes", "serial,chunked,auto", "--json",
         "--dtype", "float32", "--sweep", "chunk_size=4", "--serial-items", "3", "--out", str(tmp_path)]
    )  # fmt: skip
    captured = capsys.readouterr()
    assert status == 0, captured.out
    document = json.loads(captured.out.splitlines()[-1])
    rows = [(row["mode"], row["sweep"]) for row in document["rows"]]
    assert rows == [("serial", {}), ("chunked", {}), ("auto", {}), ("chunked", {"chunk_size": 4})]
    for row in document["rows"]:
        assert row["workload"] == "small"
        assert row["items_per_second"] > 0
        assert (row["void"], row["compilations"], row["backend_compilations"]) == ([], 0, 0)
        assert row["max_difference"] <= 1e-5
        assert row["repeats"] == (3 if row["mode"] == "serial" else 10)
    assert document["workloads"][0]["checksum"] == document["rows"][0]["checksum"]
    assert document["ceilings"][0]["flops_per_second"] > 1e9
    assert {"jax", "numpy", "onepass", "python"} <= document["versions"].keys()
    assert {"command", "date", "commit", "dirty", "hardware", "settings"} <= document.keys()
    assert "float32 small auto: " in captured.err
    (written,) = tmp_path.glob("bench-small-*.json")
    assert json.loads(written.read_text()) == document
    assert written.with_suffix(".md").read_text().count("| chunked") == 2
    page = written.with_suffix(".html").read_text()
    assert page.count("<svg") == 4  # throughput, the sweep, latencies, roofline
    assert "://" not in page  # it needs nothing from elsewhere
    for text in (captured.out, written.with_suffix(".md").read_text(), page):
        assert "serial float32: 3 of " in text, "what a reader must know of a row, wherever it is read"


def test_a_grid_is_a_branch_per_question_and_candidate(
    checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(
        ["bench", str(checkpoint("qwen3")), "--workload", "grid", "--query-tokens", "60", "--items", "3", "--repeats",
         "2", "--modes", "serial,packed-segment,extend", "--dtype", "float32", "--serial-items", "4", "--json"]
    )  # fmt: skip
    captured = capsys.readouterr()
    assert status == 0, captured.out
    for row in json.loads(captured.out.splitlines()[-1])["rows"]:
        assert (row["void"], row["num_items"]) == ([], 12)
        assert row["tokens"] == 60 + 3 * 40 + 12 * 24
        assert row["max_difference"] <= 1e-5


@pytest.mark.usefixtures("built_kernels")
def test_real_requests_come_from_a_file(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"query": "The capital of", "items": [" France is", " Italy is"], "labels": [" Paris", " Rome"]},
        {"query": "Water boils at", "items": [" 100 degrees"], "labels": [" yes", " no"], "apply_softmax": True},
    ]
    file = tmp_path / "asked.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    options = ["--requests", str(file), "--modes", "packed-segment", "--repeats", "2", "--dtype", "float32"]
    assert main(["bench", str(checkpoint("qwen3")), *options, "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out.splitlines()[-1])
    (row,) = document["rows"]
    assert (row["workload"], row["num_items"], row["repeats"], len(row["times_ms"])) == ("asked", 3, 2, 4)
    assert row["notes"] == ["only 2 timed calls; a figure to keep needs 10"]
    assert "packed-segment float32: only 2 timed calls; a figure to keep needs 10" in captured.out.splitlines()
    assert captured.err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "contrakt"], "workload must be one of contract, track_low"),
        (["--sweep", "layers=2"], "a sweep is NAME=N,N,... with NAME one of chunk_size"),
        (["--sweep", "chunk_size=2", "--modes", "extend"], "sweeping chunk_size needs mode chunked; got extend"),
        (["--quantize", "fp8", "--peers", "vllm"], "peers have no fp8: leave out --quantize or --peers"),
        (["--quantize", "int8", "--peers", "all", "--workload", "mixed"], "peers on mixed traffic are not quantized"),
        (["--requests", "no-such-file.jsonl"], "cannot read no-such-file.jsonl"),
        (["compare", "no-such.json", "other.json"], "cannot read no-such.json"),
        (["--clients", "4", "--overload"], "--clients, --overload needs --url, a running server"),
        (["--as", "text"], "--as needs --url"),
        (["--kinds", "tiny"], "--kinds needs --workload mixed"),
        (["--workload", "mixed", "--items", "3", "--in-flight", "2"], "sizes of its own; got --items, --in-flight"),
        (["--workload", "mixed", "--clients", "1,8"], "without --url, --clients is one number"),
        (["--workload", "mixed", "--roof-tflops", "1"], "--roof-tflops needs --url"),
        (["--url", "http://127.0.0.1:1", "--workload", "mixed", "--loop", "ramp"], "in a closed loop; got --loop"),
        (["--url", "http://127.0.0.1:1", "--workload", "mixed"], "no server answers at http://127.0.0.1:1"),
        (["qwen3", "--url", "http://127.0.0.1:1"], "the server at --url decides that itself; got a model (qwen3)"),
        (["--url", "http://127.0.0.1:1", "--modes", "extend", "--repeats", "3"], "got --modes, --repeats"),
        (["--url", "http://127.0.0.1:1", "--in-flight", "8", "--tp", "2"], "got --in-flight, --tp"),
        (["--url", "http://127.0.0.1:1", "--offline", "--revision", "x"], "got --revision, --offline"),
        (["--url", "127.0.0.1:1"], "--url must be http://HOST:PORT or https://HOST:PORT; got '127.0.0.1:1'"),
        (["--url", "http://127.0.0.1:1", "--loop", "open"], "an open loop needs --rates"),
        (["--url", "http://127.0.0.1:1", "--mix", "small:0"], "a weight above 0; got 'small:0'"),
        (["--url", "http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1"),
    ],
)
def test_mistakes_are_status_2_before_anything_is_loaded(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_names_in_help_are_those_of_the_package() -> None:
    """They are written twice, so that --help needs no JAX."""
    from onepass.bench import mixed, workloads
    from onepass.bench.offline import cases as ways

    assert (mixed.MIXED, tuple(mixed.KINDS)) == (MIXED, KINDS)
    assert tuple(ways.MODES) == MODES
    assert tuple(workloads.SHAPES) == WORKLOADS


def test_an_api_key_is_not_kept_with_the_command() -> None:
    given = ["bench", "--api-key", "secret", "--url", "http://h", "--api-key=secret"]
    assert without_key(given) == ["bench", "--api-key", "…", "--url", "http://h", "--api-key=…"]


def test_a_profile_tells_where_device_and_host_time_went(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for attempt in range(3):  # on a busy machine a single operation may be kept waiting for most of the time
        folder = tmp_path / f"trace{attempt}"
        options = [*SIZES, "--mode", "extend", "--dtype", "float32", "--out", str(folder)]
        assert main(["profile", str(checkpoint("qwen3")), *options, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        spent = found["spent"]
        named = sum(ms for part, ms in spent["device"].items() if not part.endswith(("other", "attention")))
        if named > 0.5 * sum(spent["device"].values()):
            break
    scopes = {scope for part in spent["device"] for scope in part.split("/")}
    assert {"attention", "qkv", "attn_out", "mlp", "gate_up", "down", "norm", "kv_write", "vocabulary"} <= scopes
    assert set(STAGES.values()) - {"host encode"} <= spent["host"].keys()
    assert 0 < spent["busy_ms"] < spent["wall_ms"]
    assert spent["idle_ms"] == pytest.approx(spent["wall_ms"] - spent["busy_ms"])
    assert named > 0.5 * sum(spent["device"].values())
    assert list(Path(found["trace"]).rglob("*.xplane.pb"))


def test_weights_in_8_bits_can_be_profiled(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*SIZES, "--mode", "extend", "--dtype", "float32", "--quantize", "int8", "--out", str(tmp_path / "trace")]
    assert main(["profile", str(checkpoint("qwen3")), *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["quantize"] == "int8"
    assert found["spent"]["device"]
    options[options.index("int8")] = "gguf"
    assert main(["profile", str(checkpoint("qwen3")), *options]) != 0
    assert "quantize='gguf' needs a GGUF file; qwen3 is none" in capsys.readouterr().err
