"""--tp, --dp and the options of several hosts reach what they are for, or are refused with what was wrong."""

from argparse import Namespace
from pathlib import Path

import pytest

from onepass.cli.main import build_parser, main
from onepass.cli.serve import options_of
from onepass.errors import ConfigError


def parsed(*arguments: str) -> Namespace:
    return build_parser().parse_args(arguments)


def test_devices_reach_the_engine_process() -> None:
    options = options_of(parsed("serve", "--tp", "4", "--dp", "2"), "")
    assert (options.engine.engine["tp"], options.engine.engine["dp"]) == (4, 2)
    assert not {"tp", "dp"} & options_of(parsed("serve"), "").engine.engine.keys(), "else they are decided there"


@pytest.mark.parametrize("command", ["score", "serve", "bench", "validate"])
def test_every_command_that_loads_a_model_takes_devices(command: str) -> None:
    args = parsed(command, "--tp", "2", "--dp", "3")
    assert (args.tp, args.dp) == (2, 3)


def test_no_devices_at_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parsed("score", "--tp", "0")
    assert "must be a whole number of at least 1; got '0'" in capsys.readouterr().err


def test_more_devices_than_there_are_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"query": [1], "items": [[2]], "label_token_ids": [3]}')
    asked = ["--requests", str(rows), "--tp", "900", "--quiet"]
    assert main(["score", "random:qwen3-0.6b?layers=1", *asked]) == 2
    assert "tp=900 needs 900 devices; there are" in capsys.readouterr().err


def test_a_place_among_hosts_reaches_the_engine_process() -> None:
    place = ("--coordinator", "10.0.0.1:9876", "--num-processes", "2", "--process-id", "0")
    assert options_of(parsed("serve", *place), "").engine.hosts == {
        "coordinator": "10.0.0.1:9876",
        "processes": 2,
        "process": 0,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--coordinator", "a:1"), "belong together; some of them are missing"),
        (("--coordinator", "a:1", "--num-processes", "2", "--process-id", "0", "--engines", "2"), "must be 1; got 2"),
    ],
)
def test_half_a_place_among_hosts_is_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options_of(parsed("serve", *arguments), "")
