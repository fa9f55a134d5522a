"""Builds the two environments with lm-evaluation-harness, below `.eval-venv`: `hf` above the packages of
`.reference-venv` (torch, transformers) and `onepass` above those of `.venv`. They differ in the version of Python.

Neither torch nor JAX is fetched or stored twice. Without `.reference-venv` there is no `hf`, and what needs it is
skipped.
"""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from virtual_environments import ROOT, Environment, build_all

HERE = Path(__file__).parent
harness = partial(
    Environment,
    script="tests/integrations/lm_eval_env/build_env.py",
    included=(HERE / "requirements.txt",),
    from_source="sqlitedict,word2number",
)
HF = harness(HERE / "hf_requirements.txt", ROOT / ".eval-venv" / "hf", below=ROOT / ".reference-venv")
ONEPASS = harness(HERE / "onepass_requirements.txt", ROOT / ".eval-venv" / "onepass", below=Path(sys.prefix))


if __name__ == "__main__":
    sys.exit(build_all([HF, ONEPASS], otherwise="the harness is not tried"))
