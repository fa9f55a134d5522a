"""An engine's host side over a device that is a slow oracle: it lays a step out token by token and follows the tables.

A token's state stands for the whole sequence that it has seen, in order. The device computes it from the keys that the
step's tables lead to, and checks that these are the keys that the visibility rule names. A read-out's logit is a number
made of its state and label, so an answer is right only where the token read at saw exactly `context + item`.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onepass.api import ScoreRequest
from onepass.attention.base import NOWHERE, StepShape
from onepass.attention.mask import PADDING
from onepass.engine.config import EngineConfig
from onepass.engine.contexts.cache import CachedContext, ContextCache
from onepass.engine.contexts.pages import PagePool
from onepass.engine.cost_model import CostModel
from onepass.engine.encoding.encode import Encoded, Encoder
from onepass.engine.encoding.segments import FamilyLimit
from onepass.engine.job import Job
from onepass.engine.packing import Packed
from onepass.engine.planner import Planner
from onepass.engine.programs.ladder import Ladder
from onepass.engine.programs.step_arrays import views
from onepass.engine.runner import StepOutput
from onepass.engine.scheduling.scheduler import Scheduler
from onepass.engine.scheduling.step_stats import InFlightStep
from onepass.models.known import known_config

EMPTY = 0
WHOLE_VOCABULARY = (-1, -2, -3)  # the log-sum-exp, the largest logit and its token
MAX_POSITION = 160
# Sizes that make steps overflow in every way: tokens, read-outs, pairs, page-table entries.
SMALL = StepShape(tokens=16, readouts=6, pairs=8, entries=20, page=8)
LARGE = StepShape(tokens=40, readouts=10, pairs=12, entries=26, page=8)


class Broken(Exception):
    pass


def extended(state: int, token: int) -> int:
    return hash((state, token)) & 0xFFFFFFFF


def state_of(ids: Sequence[int]) -> int:
    state = EMPTY
    for token in ids:
        state = extended(state, int(token))
    return state


def logit(state: int, label: int) -> float:
    return float(hash((state, label, "logit")) & 0xFFFFF)


class FailingArray:
    def is_ready(self) -> bool:
        return True

    def __array__(self, *_: object, **__: object) -> None:
        raise Broken("on the device")


class FakeDevice:
    """What a `Runner` is to the scheduler. `fails(n)` says how step number n fails: at its "launch", or when what the
    "device" has read is fetched; and, with "pool", taking the pool with it, as whatever stops a device does."""

    def __init__(self, pages: int, fails: Callable[[int], str] = lambda n: "") -> None:
        self.pages = pages
        self.fails = fails
        self.compilations = 0
        self.steps: list[tuple[StepShape, Packed]] = []
        self.copied = 0
        self._kept: dict[int, int] = {}  # slot to state
        self._lost = False

    def run(
        self, shape: StepShape, packed: Packed, copies: Sequence[tuple[int, int]] = (), whole_vocabulary: bool = False
    ) -> StepOutput:
        how = self.fails(len(self.steps))
        self.steps.append((shape, packed))
        self._lost |= "pool" in how
        if "launch" in how:
            raise Broken("at the launch")
        failing = StepOutput([FailingArray()], None)  # type: ignore[list-item]
        if self._lost:
            return failing
        for source, target in copies:
            self._copy(source, target, shape.page)
        states = Layout(shape, packed, self._kept).states()
        if "device" in how:
            return failing
        return StepOutput(*self._read(shape, packed, states, whole_vocabulary))

    def _copy(self, source: int, target: int, page: int) -> None:
        self.copied += 1
        for n in range(page):
            self._kept.pop(target * page + n, None)
            if source * page + n in self._kept:
                self._kept[target * page + n] = self._kept[source * page + n]

    def _read(self, shape: StepShape, packed: Packed, states: list[int], whole: bool) -> tuple[list[Any], Any]:
        readouts, pair_at, labels, counts = views(packed.numbers, shape)[-4:]
        assert counts.tolist() == [packed.num_tokens, packed.num_readouts]
        assert packed.num_readouts <= shape.readouts
        real = readouts[: packed.num_readouts]
        assert (np.diff(real) > 0).all(), "ascending, each once"
        assert (readouts[packed.num_readouts :] == (real[-1] if len(real) else 0)).all()
        at = [states[token] for token in real]
        first = [logit(at[n], int(label)) if at else 0.0 for n, label in zip(pair_at, labels, strict=True)]
        more = [logit(at[n], int(label)) for n, label in zip(packed.pair_at, packed.labels, strict=True)]
        vocabulary = np.zeros((3, shape.readouts), np.float32)
        for n, state in enumerate(at):
            vocabulary[:, n] = [logit(state, about) for about in WHOLE_VOCABULARY]
        logits = [np.array(some, np.float32) for some in (first, more)]
        return logits, vocabulary if whole else None

    def pool_lost(self) -> bool:
        return self._lost

    def new_pool(self) -> None:
        self._lost = False
        self._kept.clear()

    def explained(self, error: Exception) -> Exception:
        return error


class Layout:
    """A step's tokens, one by one."""

    def __init__(self, shape: StepShape, packed: Packed, kept: dict[int, int]) -> None:
        self._page = shape.page
        (self._tokens, self._segment, self._parent, self._context, self._position, self._slots, self._first_entry,
         self._context_keys, self._first_own, self._entry_page, self._entry_context, self._entry_start,
         self._entry_length) = (a.tolist() for a in views(packed.numbers, shape)[:13])  # fmt: skip
        self._count = packed.num_tokens
        self._size = shape.tokens
        self._kept = kept
        self._states: dict[int, int] = {}

    def states(self) -> list[int]:
        for index in range(self._count, self._size):
            assert (self._segment[index], self._slots[index]) == (PADDING, NOWHERE)
            assert self._context_keys[index] == 0
            assert self._first_own[index] > index
        written = [slot for slot in self._slots if slot != NOWHERE]
        assert len(set(written)) == len(written), "no two tokens write one slot"
        assert all(slot >= self._page for slot in written), "nobody writes page 0"
        # Keys of context tokens are written before anybody reads.
        for index in sorted(range(self._count), key=lambda n: self._slots[n] == NOWHERE):
            self._states[index] = self._state(index)
            if self._slots[index] != NOWHERE:
                self._kept[self._slots[index]] = self._states[index]
        return [self._states[index] for index in range(self._count)]

    def _state(self, index: int) -> int:
        """Of a token after the keys it sees, which must be those at all earlier positions, each the next one's
        beginning: so the last is enough to know all."""
        position = self._position[index]
        seen: dict[int, int] = {}
        for key in range(self._context_keys[index]):
            slot = self._slot(index, key)
            if slot == self._slots[index]:
                continue  # itself
            assert key not in seen
            if slot in self._kept:
                seen[key] = self._kept[slot]
        for other in self._own(index):
            assert self._position[other] not in seen, "two keys at one position"
            seen[self._position[other]] = self._states[other]
        again = self._segment[index] == self._context[index] and self._slots[index] == NOWHERE
        if again:
            assert seen.pop(position) == extended(seen.get(position - 1, EMPTY), self._tokens[index])
        assert sorted(seen) == list(range(position)), f"token {index} at {position} sees keys at {sorted(seen)}"
        self._check_rule(index)
        return extended(seen.get(position - 1, EMPTY), self._tokens[index])

    def _slot(self, index: int, key: int) -> int:
        entry = self._first_entry[index] + key // self._page
        assert self._entry_context[entry] == self._context[index]
        assert self._entry_start[entry] == key // self._page * self._page
        assert key % self._page < self._entry_length[entry]
        return int(self._entry_page[entry] * self._page + key % self._page)

    def _own(self, index: int) -> list[int]:
        """Tokens whose keys it sees by the rule, in the range that the step gives."""
        return [n for n in range(self._first_own[index], index) if self._rule(index, n)]

    def _rule(self, index: int, other: int) -> bool:
        if self._segment[other] == self._context[other]:
            return False  # kept in pages
        related = self._segment[other] in (self._segment[index], self._parent[index], self._context[index])
        return related and self._position[other] <= self._position[index]

    def _check_rule(self, index: int) -> None:
        """Nothing that the rule names lies outside of the ranges that kernels walk."""
        own = [n for n in range(self._count) if n != index and self._rule(index, n)]
        assert own == self._own(index)
        related = {self._segment[index], self._parent[index], self._context[index]}
        keys = sum(
            self._entry_start[e] + n <= self._position[index]
            for e in range(len(self._entry_page))
            if self._entry_context[e] in related
            for n in range(self._entry_length[e])
        )
        assert keys == self._context_keys[index]


@dataclass
class FakeEngine:
    """The whole host side, without threads: `drive` runs it until nobody waits."""

    ladder: Ladder = field(default_factory=lambda: Ladder((SMALL, LARGE)))
    pages: int = 60
    budget_pages: int = 20
    in_flight: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    fails: Callable[[int], str] = lambda n: ""

    def __post_init__(self) -> None:
        largest = self.ladder.largest
        self.now = 0.0
        self.pool = PagePool(self.pages)
        self.device = FakeDevice(self.pages, self.fails)
        self.contexts = ContextCache(self.budget_pages * 100, self.pool, largest.page, 100, lambda: self.now)
        limit = FamilyLimit(largest.tokens, largest.readouts)
        self.planner = Planner(EngineConfig(**self.options), limit, (self.pages - 1) * largest.page)
        self.encoder = Encoder(None, 100_000, MAX_POSITION)
        cost = CostModel(known_config("qwen3-0.6b"), 2)
        self.scheduler = Scheduler(
            self.ladder, cost, self.contexts, self.pool, self.device,  # type: ignore[arg-type]
            copies_early=False, computed_tokens=lambda shape, count: count,
        )  # fmt: skip
        self.flying: deque[InFlightStep] = deque()

    def submit(self, request: ScoreRequest, **fields: Any) -> Job:
        held: CachedContext | None = None
        now = time.perf_counter()
        if request.context is not None:
            held = self.contexts.hold_handle(request.context)
        encoded = self.encoder.encode(request, None if held is None else held.ids)
        plan = self.planner.plan(encoded, self._cached(encoded, held))
        job = Job(plan, encoded.context, now, now, encoded, handle=held, **fields)
        self.scheduler.admit(job)
        return job

    def prefill(self, ids: Sequence[int]) -> Job:
        now = time.perf_counter()
        job = Job(self.planner.prefill(tuple(ids)), tuple(ids), now, now)
        self.scheduler.admit(job)
        return job

    def turn(self) -> bool:
        """What the engine's thread does once; False when there is nothing to do."""
        launched = self.scheduler.launch()
        if launched is not None:
            self.flying.append(launched)
        self._check_pages_in_flight()
        if self.flying and (launched is None or len(self.flying) >= self.in_flight):
            self.scheduler.collect(self.flying.popleft())
        for job in self.scheduler.finished():
            job.finish("fake")
        return bool(self.flying) or self.scheduler.waiting

    def _check_pages_in_flight(self) -> None:
        """A page is free only when the last step that reads or writes it is done."""
        free = set(self.pool._free)
        for step in self.flying:
            page, context = views(step.packed.numbers, step.shape)[9:11]
            assert not free & set(page[context != PADDING].tolist())

    def drive(self, most: int = 3000) -> None:
        while self.turn():
            most -= 1
            assert most, "somebody waits for ever"

    def all_pages_are_free(self) -> bool:
        self.contexts.clear()
        return self.pool.free == self.pages - 1

    def _cached(self, encoded: Encoded, held: CachedContext | None) -> int:
        if held is not None and held.ids == encoded.context:
            return len(held.ids)
        nearest = self.contexts.longest_prefix(encoded.context) if encoded.context else None
        return 0 if nearest is None else nearest[1]


def wanted(encoded: Encoded) -> tuple[list[float], list[list[float]]]:
    """Logits and what is read of the vocabulary, by the definition: each label after `context + item`, each
    continuation's token after everything before it."""
    logits, totals = [], []
    for item, labels, texts in zip(encoded.items, encoded.labels, encoded.continuations, strict=True):
        ends = [(state_of([*encoded.context, *item]), label) for label in labels]
        for text in texts:
            ends += [(state_of([*encoded.context, *item, *text[:n]]), token) for n, token in enumerate(text)]
        logits += [logit(*end) for end in ends]
        totals += [[logit(state, about) for about in WHOLE_VOCABULARY] for state, _ in ends]
    return logits, totals


def is_right(job: Job) -> bool:
    assert job.encoded is not None
    read = job.future.result(0).read
    logits, totals = wanted(job.encoded)
    same = np.array_equal(read.logits, np.array(logits, np.float32))
    if not job.whole_vocabulary:
        return same
    vocabulary = np.array(totals, np.float32).reshape(-1, 3).T
    same = same and np.array_equal(read.logsumexp, vocabulary[0])
    return same and (read.best is None or np.array_equal(read.best, vocabulary[1:]))
