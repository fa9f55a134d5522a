"""Requests of `/v1/modes` in the engine process: run in every mode on a thread of their own, one after another.

The scorers for it share the served model's weights and nothing else, so that requests which are served meanwhile keep
their contexts and programs. Running the modes is `onepass.visualize`; the figures are shared with what is served, since
the device is.
"""

from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any

from onepass.engine.encoding.encode import Encoded
from onepass.engine.job import settle
from onepass.scorer import Scorer


@dataclass(frozen=True)
class ModesCall:
    """A request that is to be run in every mode."""

    encoded: Encoded
    repeats: int
    chunk_size: int | None
    future: "Future[dict[str, Any]]"


class ModeRuns:
    """The thread starts with the first call. Cancelling a call's future ends it after the mode that is running."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._calls: SimpleQueue[ModesCall] = SimpleQueue()
        self._thread: Thread | None = None

    def submit(self, encoded: Encoded, repeats: int, chunk_size: int | None) -> "Future[dict[str, Any]]":
        """The document of `/v1/modes`."""
        call = ModesCall(encoded, repeats, chunk_size, Future())
        self._calls.put(call)
        if self._thread is None:
            self._thread = Thread(target=self._work, name="onepass-modes", daemon=True)
            self._thread.start()
        return call.future

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            try:
                settle(call.future, self._run(call))
            except CancelledError:
                continue
            except Exception as error:
                settle(call.future, error)

    def _run(self, call: ModesCall) -> dict[str, Any]:
        from onepass.visualize.document import mode_document
        from onepass.visualize.mode_run import Options, run_modes

        def check(stage: str, done: int, of: int) -> None:
            if call.future.cancelled():
                raise CancelledError

        check("", 0, 0)
        scorer = self._scorer
        options = Options(call.repeats, call.chunk_size)
        runs = run_modes((scorer.model, scorer.weights), call.encoded, options, check, scorer.engine.config)
        return {"modes": [mode_document(run) for run in runs], "repeats": call.repeats}
