"""The process that compiles one program: reads a job from stdin, leaves the program in the store and ends.

stdin stays open until then; when it closes, whoever asked is gone, and so is the process. It is started by
`compile_processes`.
"""

import os
import pickle
import sys
import threading

from onepass.engine.programs.compile_processes import Job
from onepass.engine.programs.kept import kept_programs

OTHER_KEY, NOT_KEPT, ALONE = 3, 4, 5  # exit statuses


def compile_job(job: Job) -> int:
    kept = kept_programs(job.parts)
    if kept.key(job.program).digest() != job.digest:
        print(f"program {job.program} has another key in this process", file=sys.stderr)
        return OTHER_KEY
    made = kept.compile(job.program, lambda: kept.builder.lower(job.program))
    return 0 if made.bytes else NOT_KEPT


def end_with_caller() -> None:
    while os.read(0, 4096):
        pass
    os._exit(ALONE)


if __name__ == "__main__":
    job = pickle.load(sys.stdin.buffer)
    threading.Thread(target=end_with_caller, daemon=True).start()
    status = compile_job(job)
    sys.stderr.flush()
    os._exit(status)  # nothing of JAX's is worth taking down with care
