"""The command as users meet it: a real process, its exit status, and what it prints where."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onepass.version import VERSION

ROOT = Path(__file__).parents[2]


def onepass(*arguments: str, text: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onepass", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from onepass.cli.main import main\n"
        "try: main(['score', '--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "heavy = {'jax', 'numpy', 'rich', 'tokenizers', 'huggingface_hub', 'platformdirs', 'gguf'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("usage: onepass score [MODEL]")


def test_a_process_that_ends_does_not_walk_its_objects(tmp_path: Path) -> None:
    """Handlers run last come first: this one after the command's own."""
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print('frozen', gc.get_freeze_count() > 1000))\n"
        "from onepass.cli.main import main\n"
        f"sys.argv[1:] = ['models', '--json', '--cache-dir', {str(tmp_path)!r}]\n"
        "sys.exit(main())\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.splitlines()[-1] == "frozen True"


def test_the_command_alone_prints_its_help() -> None:
    answer = onepass()
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == onepass("--help").stdout
    assert answer.stdout.startswith("usage: onepass COMMAND")


def test_version_is_the_packages() -> None:
    answer = onepass("--version")
    assert (answer.returncode, answer.stdout) == (0, f"onepass {VERSION}\n")


def test_the_page_in_docs_is_what_help_says() -> None:
    answer = subprocess.run([sys.executable, "-m", "onepass.cli.reference"], capture_output=True, check=True)
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == answer.stdout.decode(), "docs/cli.md is out of date: run `make docs`"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scor"], "no such command: 'scor'; did you mean score? (see `onepass --help`)"),
        (["rerank"], "did you mean rank?"),
        (["xyzzy"], "no such command: 'xyzzy'; the commands are score, rank, "),
        (["models", "--nonsense"], "unrecognized arguments: --nonsense (see `onepass models --help`)"),
        (["score", "--querry", "x"], "--querry; did you mean --query? (see `onepass score --help`)"),
        (["rank", "--documnets=x"], "did you mean --documents? (see `onepass rank --help`)"),
        (["--versoin"], "did you mean --version?"),
        (["score", "--top", "0"], "must be a whole number of at least 1; got '0'"),
        (["serve", "--port", "65536"], "must be a whole number from 0 to 65535; got '65536'"),
        (["info", "smolm2-135m"], "did you mean smollm2-135m"),
        (["info", "random:qwen3-0.6b?heads=2"], "takes ?layers=N and ?seed=N"),
        (["info", "--offline", "--cache-dir", "nowhere"], "offline mode forbids fetching it"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_status_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    answer = onepass(*arguments, cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("onepass: ")
    assert message in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_an_unexpected_error_is_not_swallowed(tmp_path: Path) -> None:
    code = "import onepass.cli.models as m, onepass.cli.main as c; m.print_json = None; c.main(['models', '--json'])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "Traceback" in answer.stderr


def test_interrupting_is_quiet_and_status_130() -> None:
    # Started from a script in the background, tests inherit an ignored SIGINT; a user's terminal does not ignore it.
    heeding = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = heeding + "from onepass.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "score", "--query", "-", "--items", "a", "--labels", " b"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdin is not None
        process.stdin.write(b"x")  # it now waits for the end of stdin
        process.stdin.flush()
        wait_until_reading(process.pid)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.returncode, process.stdout.read()) == (130, b"")
        assert process.stderr.read() == b"onepass: interrupted\n"


def wait_until_reading(pid: int) -> None:
    """Until the process has emptied its stdin pipe, and so runs under `main`'s protection."""
    import fcntl
    import struct
    import termios
    import time

    with open(f"/proc/{pid}/fd/0", "rb", buffering=0) as pipe:
        for _ in range(1000):
            unread = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]
            if not unread:
                return
            time.sleep(0.01)
    raise AssertionError("the process did not read its stdin")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_leaves_is_no_error(form: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "onepass.cli.main", "models", *form]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    answer = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False, env=buffered)
    os.close(write_end)
    assert (answer.returncode, answer.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_full_disk_is_one_line_and_status_2(form: list[str]) -> None:
    command = [sys.executable, "-m", "onepass.cli.main", "models", *form]
    with open("/dev/full", "wb") as full:
        answer = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (answer.returncode, answer.stderr) == (2, b"onepass: cannot write: No space left on device\n")
