"""TPUs are described by name without being there, and nothing is set behind the caller's back."""

import os
import subprocess
import sys

import pytest

from onepass.errors import ConfigError
from onepass.parallel.topology import COMPILER_ONLY, Topology, prepare


@pytest.mark.parametrize(
    ("name", "chips"),
    [("v6e:1x1", 1), ("v6e:2x2", 4), ("v6e:2x4", 8), ("v5e:4x4", 16), ("v5p:2x2x1", 4), ("v7x:2x2x2", 8)],
)
def test_a_name_says_how_many_chips_there_are(name: str, chips: int) -> None:
    topology = Topology.parse(name)
    assert topology.chips == chips
    assert str(topology) == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("h100:2x2", "one of v4, v5e, v5p, v6e, v7x"),
        ("v6e", "2 sizes of at least 1, as in v6e:2x2; got 'v6e'"),
        ("v6e:2x2x1", "2 sizes"),
        ("v5p:2x2", "3 sizes of at least 1, as in v5p:2x2x2"),
        ("v6e:0x2", "at least 1"),
        ("v6e:2x-2", "at least 1"),
        ("v6e:2x²", "at least 1"),
        ("v6e:axb", "got 'v6e:axb'"),
        ("", "one of"),
    ],
)
def test_a_name_that_is_none_is_refused_with_what_is_wanted(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Topology.parse(name)


def test_preparing_keeps_what_the_caller_has_set() -> None:
    environment = {"JAX_PLATFORMS": "cuda", "HOME": "here"}
    prepare(environment)
    assert environment == COMPILER_ONLY | {"JAX_PLATFORMS": "cuda", "HOME": "here"}


def in_a_process(code: str) -> str:
    """What a fresh Python prints: libtpu reads the environment once, so this one's must not matter."""
    environment = {name: value for name, value in os.environ.items() if name not in COMPILER_ONLY}
    prepare(environment)
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)  # where libtpu lies is known to this process
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_importing_sets_nothing() -> None:
    """Beyond what JAX sets for itself."""
    code = """
import os, jax
before = dict(os.environ)
import onepass.parallel.topology
print(before == dict(os.environ))
"""
    assert in_a_process(code) == "True\n"


def test_described_devices_are_of_the_kind_and_number_asked_for() -> None:
    pytest.importorskip("libtpu")
    code = """
from onepass.errors import ConfigError
from onepass.parallel.topology import Topology
for name in ("v6e:1x1", "v6e:2x2", "v6e:2x4", "v5e:1x1", "v5p:2x2x1", "v7x:2x2x1"):
    devices = Topology.parse(name).devices()
    print(name, len(devices), devices[0].device_kind, len({d.process_index for d in devices}))
print(dict(Topology.parse("v6e:2x4").mesh({"data": 2, "model": 4}).shape))
for ask in (lambda: Topology.parse("v6e:2x2").mesh({"model": 8}), lambda: Topology.parse("v6e:3x7").devices()):
    try:
        ask()
    except ConfigError as error:
        print(str(error)[:59])
import jax
print(jax.devices()[0].platform)
"""
    assert in_a_process(code).splitlines() == [
        "v6e:1x1 1 TPU v6 lite 1",
        "v6e:2x2 4 TPU v6 lite 1",
        "v6e:2x4 8 TPU v6 lite 1",
        "v5e:1x1 1 TPU v5 lite 1",
        "v5p:2x2x1 4 TPU v5 1",
        "v7x:2x2x1 8 TPU7x 1",
        "{'data': 2, 'model': 4}",
        "a mesh of v6e:2x2 must hold its 4 devices; got {'model': 8}",
        "libtpu knows no v6e:3x7: INVALID_ARGUMENT: Topology layout ",
        "cpu",
    ]
