"""The engine process, `python -m onepass.server.engines.worker FD`: loads and proves the model, answers frames on FD.

One thread reads frames and answers pings from the first moment, also while loading; the engine's own thread writes the
answers. The process ends when the front's end of the socket is closed. Restarting it is `process`'s work.
"""

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onepass.api import ContextHandle
from onepass.engine.gc_policy import rare_collections
from onepass.engine.job import Tenant
from onepass.engine.readout import ReadOut
from onepass.errors import ConfigError, DoesNotFit, ModelError, OnepassError
from onepass.ipc import Frame, FrameSocket
from onepass.loading.model import Model, open_model
from onepass.loading.source import SourceOptions
from onepass.scorer import Scorer
from onepass.server.engines.details import details_of
from onepass.server.engines.mode_runs import ModeRuns
from onepass.server.engines.priority import give_way
from onepass.server.engines.protocol import answer_frame, error_frame, part_frame, score_call
from onepass.server.engines.startup_check import self_test
from onepass.server.logs import JsonLines, capture_process

log = logging.getLogger("onepass.engine")


class Worker:
    def __init__(self, frames: FrameSocket) -> None:
        self._frames = frames
        self._scorer: Scorer | None = None
        self._calls: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._leads = False  # other processes have parts of the model
        self._mode_runs: ModeRuns | None = None  # where the server has the visualizer

    def run(self) -> int:
        """The process's exit status: 2 when the options cannot be served, however often one tries."""
        start = self._frames.read()
        if start is None:
            return 0
        logging.getLogger("onepass").setLevel(start.fields.get("log_level", "info").upper())
        reader = threading.Thread(target=self._read, name="onepass-frames", daemon=True)
        reader.start()
        try:
            scorer = self._load(start.fields)
        except (ModelError, ConfigError) as error:
            self._frames.write(Frame("refused", fields={"reason": str(error)}))
            return 2
        self._scorer = scorer
        details = details_of(scorer)
        if start.fields["visualizer"] and not self._leads:
            self._mode_runs = ModeRuns(scorer)
        details["details"]["visualizer"] = self._mode_runs is not None
        if scorer.engines[0].device.platform == "cpu":
            give_way()
        with rare_collections():
            self._frames.write(Frame("ready", fields={**details, "stats": self._stats()}))
            reader.join()
        return 0

    def _load(self, settings: dict[str, Any]) -> Scorer:
        def progress(stage: str, done: int, of: int) -> None:
            self._frames.write(Frame("progress", fields={"stage": stage, "done": done, "of": of}))

        options = dict(settings["engine"])
        for name in ("programs_dir", "cache_dir", "template"):
            if (path := settings.get(name)) is not None:
                options[name] = Path(path)
        source = {
            name: settings[name] for name in ("dtype", "revision", "offline", "rank_by", "calibration", "adapter")
        }
        if settings.get("hosts") is not None:
            from onepass.parallel.hosts import Hosts

            source["hosts"] = Hosts(**settings["hosts"])
            self._leads = True
        model: str | Model = settings["model"]
        if not self._leads:  # processes that share a model join before it is opened
            where = SourceOptions(
                settings["revision"],
                settings["offline"],
                options.get("cache_dir"),
                progress=progress,
                adapter=settings["adapter"],
            )
            model = open_model(settings["model"], where)
            if options.get("template") is None and settings["rank_by"] == "auto":
                refuse_unknown_reranker(model)
        scorer = Scorer.load(model, progress=progress, **source, **options)
        progress("self-test", 0, 1)
        self_test(scorer)
        progress("self-test", 1, 1)
        return scorer

    def _read(self) -> None:
        """Until the front has gone; then there is nobody to work for."""
        try:
            while (frame := self._frames.read()) is not None:
                self._take(frame)
        except OSError as error:
            log.warning("the front's socket failed: %s", error)
        if self._leads and self._scorer is not None:
            self._scorer.close()  # the other processes are told that it ends
        os._exit(0)

    def _take(self, frame: Frame) -> None:
        if frame.kind == "ping":
            self._frames.write(Frame("pong", frame.call, self._stats()))
        elif frame.kind == "cancel":
            with self._lock:
                future = self._calls.get(frame.call)
            if future is not None:
                future.cancel()
        else:
            try:
                self._call(frame)
            except OnepassError as error:
                self._frames.write(error_frame(frame.call, error))
            except MemoryError:
                self._frames.write(
                    error_frame(frame.call, DoesNotFit("the engine process has no memory for this request"))
                )
            except Exception as error:
                log.exception("call %s failed", frame.kind)
                self._frames.write(error_frame(frame.call, error))

    def _call(self, frame: Frame) -> None:
        scorer = self._scorer
        assert scorer is not None, "calls come after `ready`"
        if frame.kind == "score":
            call = score_call(frame)

            def part(first: int, last: int, read: ReadOut) -> None:
                self._frames.write(part_frame(frame.call, first, last, read))

            share, on_items = Tenant(call.tenant, call.priority), part if call.in_parts else None
            self._answer(
                frame.call,
                scorer.engine.submit_encoded(call.encoded, call.handle, share, on_items),
                lambda output: answer_frame(frame.call, output.read, output.info),
            )
        elif frame.kind == "prefill":
            ids = tuple(frame.arrays["ids"].tolist())
            future = scorer.engine.prefill_encoded(ids, Tenant(frame.fields["tenant"], frame.fields["priority"]))
            ttl, pin = frame.fields["ttl_seconds"], frame.fields["pin"]
            self._answer(
                frame.call, future, lambda _: _context_frame(frame.call, scorer.engine.contexts.open(ids, ttl, pin))
            )
        elif frame.kind == "modes":
            assert self._mode_runs is not None, "the front asks only where `ready` said so"
            repeats, chunk_size = frame.fields["repeats"], frame.fields["chunk_size"]
            self._answer(
                frame.call,
                self._mode_runs.submit(score_call(frame).encoded, repeats, chunk_size),
                lambda document: Frame("modes", frame.call, document),
            )
        elif frame.kind == "find":
            handle, _ = scorer.engine.contexts.get(frame.fields["id"])
            self._frames.write(_context_frame(frame.call, handle))
        else:
            assert frame.kind == "close", f"an unknown call: {frame.kind}"
            scorer.release(frame.fields["id"])
            self._frames.write(Frame("closed", frame.call))

    def _answer(self, number: int, future: "Future[Any]", answer: Callable[[Any], Frame]) -> None:
        """`answer` makes the frame of the future's result."""
        with self._lock:
            self._calls[number] = future
        future.add_done_callback(lambda done: self._settled(number, done, answer))

    def _settled(self, number: int, future: "Future[Any]", answer: Callable[[Any], Frame]) -> None:
        with self._lock:
            self._calls.pop(number, None)
        try:
            self._frames.write(answer(future.result()))
        except CancelledError:
            pass
        except OSError:
            os._exit(0)  # the front has gone
        except Exception as error:
            if not isinstance(error, OnepassError):
                log.exception("a request failed")
            self._frames.write(error_frame(number, error))

    def _stats(self) -> dict[str, Any]:
        if self._scorer is None:
            return {}
        engine = self._scorer.engine
        if engine.failure is not None:
            os._exit(70)  # its thread has ended: a fresh process is the remedy
        began = engine.oldest_step
        return {
            **asdict(engine.totals),
            "compilations": engine.runner.compilations,
            "compiling": engine.runner.compiling,
            "cache_bytes": engine.contexts.bytes,
            "cache_budget_bytes": engine.contexts.budget,
            "cache_peak_bytes": engine.contexts.peak_bytes,
            "cache_contexts": len(engine.contexts),
            "cache_evictions": engine.contexts.evictions,
            "step_seconds": 0.0 if began is None else time.perf_counter() - began,
        }


def refuse_unknown_reranker(model: Model) -> None:
    """A reranker that does not tell how it is read is not served with scores that look like its own. A model with a
    classification head is: it may be a reward model, and only rerank requests are refused."""
    if model.ranker.problem and model.class_head is None:
        raise ConfigError(model.ranker.problem)


def _context_frame(number: int, handle: ContextHandle) -> Frame:
    return Frame("context", number, asdict(handle))


def main(argv: list[str]) -> int:
    # The front drains before it closes the socket; a Ctrl-C at the terminal or a service manager's SIGTERM to the whole
    # group must not take the engine away from under it.
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())  # the front reads these lines and writes them in its own format
    capture_process(handler)
    logging.getLogger("onepass").setLevel(logging.INFO)
    return Worker(FrameSocket(socket.socket(fileno=int(argv[0])))).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
