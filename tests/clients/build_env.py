"""Builds the environments with other people's clients: `.clients-venv` (cohere, litellm, … and schemathesis) and
`.decision-clients-venv` (openai 3, typesafe-sdk, pydantic-ai), which do not agree with one another. Small wheels.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from virtual_environments import ROOT, Environment, build_all

HERE = Path(__file__).parent
SCRIPT = "tests/clients/build_env.py"
RERANK_CLIENTS = Environment(HERE / "requirements.txt", ROOT / ".clients-venv", SCRIPT)
DECISION_CLIENTS = Environment(HERE / "decision_requirements.txt", ROOT / ".decision-clients-venv", SCRIPT)


if __name__ == "__main__":
    sys.exit(build_all([RERANK_CLIENTS, DECISION_CLIENTS], otherwise="its clients are not tried"))
