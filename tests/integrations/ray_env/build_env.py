"""Builds `.ray-venv`, the environment with Ray: the packages of requirements.txt, above those of the Python that runs
this (`.venv`), so that JAX and onepass are neither fetched nor stored twice.

Bytecode is compiled here, for Ray gives its processes little time to start.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from virtual_environments import ROOT, Environment, build_all

HERE = Path(__file__).parent
RAY = Environment(
    HERE / "requirements.txt",
    ROOT / ".ray-venv",
    "tests/integrations/ray_env/build_env.py",
    below=Path(sys.prefix),
    bytecode=True,
)


if __name__ == "__main__":
    sys.exit(build_all([RAY], otherwise="Ray is not tried"))
