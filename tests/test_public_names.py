"""The public names are pinned: adding or losing one is a decision, and this list is where it is written down."""

import subprocess
import sys

import pytest

import onepass
from onepass import api, errors

PUBLIC = [
    "AsyncClient",
    "BadCheckpoint",
    "ChatOptions",
    "Client",
    "CompilerFailed",
    "ConfigError",
    "ContextHandle",
    "ContextNotFound",
    "Continuation",
    "DeadlineExceeded",
    "DecisionAnswer",
    "DecisionResult",
    "DoesNotFit",
    "DownloadFailed",
    "EngineConfig",
    "EngineUnavailable",
    "Mode",
    "ModelError",
    "ModelNotFound",
    "OnepassError",
    "Overloaded",
    "Prompt",
    "PromptPart",
    "Question",
    "RankedItem",
    "Ranking",
    "RequestError",
    "Retries",
    "ScoreRequest",
    "ScoreResult",
    "Scorer",
    "Timings",
    "TooLong",
    "Unserved",
    "UnsupportedModel",
    "Usage",
    "__version__",
]


def test_the_public_names_are_these() -> None:
    assert onepass.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(onepass, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Score'"):
        _ = onepass.Score


def test_every_error_is_public_and_of_one_tree() -> None:
    assert set(errors.__all__) <= set(PUBLIC)
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), onepass.OnepassError)


def test_the_nouns_of_the_api_are_public() -> None:
    assert set(api.__all__) - {"Mode"} <= set(PUBLIC)


@pytest.mark.parametrize("imported", ["onepass", "onepass.cli.main"])
def test_importing_brings_in_no_jax(imported: str) -> None:
    """`onepass --help` answers at once."""
    code = f"import sys, {imported}; print(sorted(m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
