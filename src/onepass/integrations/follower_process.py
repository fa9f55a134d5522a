"""A process that holds a part of a model: `python -m onepass.integrations.follower_process JSON`.

JSON has the fields of `server.config.EngineOptions`, with `hosts`. The process computes what process 0 says and ends
with it, and also when its standard input ends: whoever started it holds the other end. Restarting it is `ray_hosts`.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from onepass.engine.multihost.follower import follow
from onepass.errors import OnepassError
from onepass.parallel.hosts import Hosts

EXIT_STATUS = 70


def main(options: dict[str, Any]) -> int:
    threading.Thread(target=_end_with_parent, name="onepass-parent", daemon=True).start()
    engine = dict(options["engine"])
    if options["programs_dir"] is not None:
        engine["programs_dir"] = Path(options["programs_dir"])
    cache_dir = None if options["cache_dir"] is None else Path(options["cache_dir"])
    source = {name: options[name] for name in ("dtype", "revision", "offline", "adapter")}
    try:
        follow(options["model"], Hosts(**options["hosts"]), cache_dir=cache_dir, **source, **engine)
    except OnepassError as error:
        print(f"process {options['hosts']['process']}: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_STATUS)  # JAX would end this process with a core dump when it finds that process 0 has gone
    return 0


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(EXIT_STATUS)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
