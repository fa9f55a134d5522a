"""Ctrl-C ends a command wherever it is, with what is finished on disk: real processes, one of them on a terminal."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onepass.cli.terminal.interrupt import prompt_interrupt

WAIT_SECONDS = 120
ROWS = 100_000  # hours of work: whoever finishes them first does not pass

# Started from a script in the background, tests inherit an ignored SIGINT; a user's terminal does not ignore it.
HEEDING = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
# The terminal on stdin becomes the one Ctrl-C is typed at. By the process itself: JAX warns of forks that run Python.
ON_TERMINAL = HEEDING + "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
COMMAND = ON_TERMINAL + "from onepass.cli.main import main; sys.exit(main())"
# A call that stays in C for many minutes, as a compiler may: Python cannot raise anything there.
DEAF = HEEDING + (
    "import hashlib\n"
    "from onepass.cli.terminal.interrupt import prompt_interrupt\n"
    "with prompt_interrupt():\n"
    "    print('deaf', flush=True)\n"
    "    hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)\n"
)


def write_rows(path: Path) -> None:
    row = json.dumps({"id": 0, "query": "The fox", "items": [" yes", " no"] * 10, "labels": [" yes"], "mode": "serial"})
    with path.open("w") as file:
        for number in range(ROWS):
            file.write(row.replace('"id": 0', f'"id": {number}') + "\n")


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert process.poll() is None, "the process ended by itself"
        assert time.monotonic() < until, "it did not come so far"
        time.sleep(0.02)


def test_ctrl_c_on_a_terminal_leaves_whole_rows_in_order(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    write_rows(rows)
    model = str(checkpoint("llama3"))
    command = [sys.executable, "-c", COMMAND, "score", model, "--requests", str(rows), "--out", str(out)]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown = bytearray()
    try:
        os.set_blocking(ours, False)

        def some_rows() -> bool:
            _read_some(ours, shown)
            return out.exists() and out.stat().st_size > 0 and out.read_bytes().count(b"\n") >= 3

        wait_until(some_rows, process)
        os.write(ours, b"\x03")

        def ended() -> bool:
            _read_some(ours, shown)
            return process.poll() is not None

        until = time.monotonic() + WAIT_SECONDS
        while not ended():
            assert time.monotonic() < until, "Ctrl-C does not end it"
            time.sleep(0.02)
        _read_some(ours, shown)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert process.returncode == 130
    text = shown.decode()
    assert "onepass: interrupted" in text
    assert f"of {ROWS:,} rows are in" in text
    assert f"of {ROWS:,}" in text.split("rows are in")[0], "progress is shown"
    finished = [json.loads(line)["id"] for line in out.read_text().splitlines()]
    assert finished == list(range(len(finished)))
    assert 3 <= len(finished) < ROWS


def _read_some(terminal: int, shown: bytearray) -> None:
    """What is there; a terminal that nobody reads would stop the process."""
    try:
        while part := os.read(terminal, 65536):
            shown.extend(part)
    except OSError:  # nothing now, or nobody at the other end
        return


@pytest.mark.parametrize(("interrupts", "raised"), [(True, "KeyboardInterrupt"), (False, "ImportError")])
def test_an_import_that_turns_the_interrupt_into_its_own_error(interrupts: bool, raised: str) -> None:
    """As NumPy's C modules do."""
    code = HEEDING + (
        "import os, time\n"
        "from onepass.cli.terminal.interrupt import prompt_interrupt\n"
        "with prompt_interrupt():\n"
        "    try:\n"
        f"        if {interrupts}: os.kill(os.getpid(), signal.SIGINT); time.sleep(10)\n"
        "    except KeyboardInterrupt:\n"
        "        pass\n"
        "    raise ImportError('umath failed to import')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1].startswith(raised)


def test_a_call_that_python_cannot_interrupt_is_ended_all_the_same() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DEAF], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == "deaf\n"
            time.sleep(1)  # into the call
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_SECONDS) == 130
            assert process.stderr.read() == "onepass: interrupted\n"
        finally:
            process.kill()


def test_a_command_that_was_started_with_the_signal_ignored_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with prompt_interrupt():
            assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_was_there_before_is_put_back() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    wakeup = signal.set_wakeup_fd(write_end)
    try:
        with prompt_interrupt():
            inner = signal.set_wakeup_fd(-1)
            assert inner not in (-1, write_end)
            signal.set_wakeup_fd(inner)
        assert signal.set_wakeup_fd(wakeup) == write_end
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(read_end)
        os.close(write_end)


@pytest.mark.parametrize("seconds", [5.0])
def test_leaving_in_time_is_not_ended(seconds: float) -> None:
    """An interrupt that the block answers itself, within the grace, is the block's own affair."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), prompt_interrupt(seconds):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    time.sleep(0.1)
