"""The harness's runs that tests of this folder compare: each once a session, in its own environment.

Which tasks there are and how runs are read is `benchmarks/lm_eval_runs.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tokenizers import Tokenizer

from benchmark_scripts import benchmark_script
from integrations.lm_eval_env.build_env import HF, ONEPASS
from server.running import PROGRAMS, serving
from virtual_environments import require

MODEL = "qwen3"  # its tokenizer puts nothing before a text, as the harness does that tokenises over HTTP
MAX_LENGTH = 512  # cuts few-shot contexts at their beginning; rolling texts have one window
DOCS = 6
RunModel = Callable[[str], Any]


@pytest.fixture(scope="session")
def harness() -> Iterator[ModuleType]:
    with benchmark_script("lm_eval_runs") as module:
        yield module


@pytest.fixture(scope="session")
def count_tokens(checkpoint: Callable[[str], Path]) -> Callable[[str], int]:
    tokenizer = Tokenizer.from_file(str(checkpoint(MODEL) / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="session")
def tasks(harness: ModuleType) -> dict[str, Any]:
    """The benchmark's by name, and one with another context. Examples that all documents have are short enough not to
    be cut, so that their beginning is shared."""
    by_name = {task.name: task for task in harness.TASKS}
    by_name["same_shots"] = replace(by_name["same_shots"], sentences=2)
    by_name["wrong_context"] = replace(by_name["many_tokens"], name="wrong_context", cue="Now")
    return by_name


@pytest.fixture(scope="session")
def run_model(
    harness: ModuleType,
    tasks: dict[str, Any],
    count_tokens: Callable[[str], int],
    checkpoint: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> RunModel:
    """`run_model(name)`: the tasks' results with a model of the harness; ours in float32, `hf` in float64."""
    model, folder = checkpoint(MODEL), tmp_path_factory.mktemp("lm-eval")
    (folder / "tasks").mkdir()
    harness.write_tasks(folder / "tasks", list(tasks.values()), DOCS, count_tokens)
    length = f"max_length={MAX_LENGTH}"

    def evaluate(name: str, module: str, arguments: str) -> Any:
        environment = HF if name == "hf" else ONEPASS
        options = ["--model", name, "--batch_size", "8", "--model_args", arguments]
        options += ["--device", "cpu"] if environment is HF else []
        command = [str(environment.python), "-m", module, *options]
        return harness.evaluate(command, list(tasks.values()), folder / "tasks", folder / name)

    @cache
    def run(name: str) -> Any:
        require(HF if name == "hf" else ONEPASS)
        if name == "hf":
            return evaluate(name, "lm_eval", f"pretrained={model},dtype=float64,{length}")
        if name == "onepass":
            arguments = f"model={model},dtype=float32,programs_dir={PROGRAMS},{length}"
            return evaluate(name, "onepass.integrations.lm_eval", arguments)
        with serving(str(model), "--dtype", "float32") as server:
            return evaluate(name, "lm_eval", completions_arguments(server.url))

    return run


def completions_arguments(url: str) -> str:
    """`local-completions` counts two tokens more than `hf`: one that it could generate, and the text's last."""
    return f"base_url={url}/v1/completions,model=default,max_length={MAX_LENGTH + 2}"
