"""Random flat steps for the tests of attention: sequences with kept and new context tokens, items and branches."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from onepass.attention.base import KeyValues, KvPool, PageTable, Queries, Step, StepShape
from onepass.attention.mask import PADDING, Places


@dataclass(frozen=True)
class Sequence:
    """`kept` context tokens are in pages already, `new` ones come in this step; `items` are lengths, each with the
    lengths of its branches; `again` computes the context's last token once more without keeping it."""

    kept: int
    new: int
    items: tuple[tuple[int, tuple[int, ...]], ...] = ()
    again: bool = False


@dataclass(frozen=True)
class Case:
    shape: StepShape
    step: Step
    q: jax.Array
    keys: KeyValues  # the pool as it was before the step


def random_sequences(rng: np.random.Generator, count: int, longest: int = 90) -> list[Sequence]:
    def item() -> tuple[int, tuple[int, ...]]:
        branches = tuple(int(n) for n in rng.integers(1, 6, rng.integers(0, 3)))
        return int(rng.integers(1, 30)), branches if rng.random() < 0.4 else ()

    out = []
    for _ in range(count):
        kept, new = int(rng.integers(0, longest)), int(rng.integers(0, longest))
        kept = kept if rng.random() < 0.5 else 0
        items = tuple(item() for _ in range(rng.integers(0, 5)))
        again = new == 0 and kept > 0 and bool(rng.random() < 0.5)
        out.append(Sequence(kept, new, items, again))
    return out


def layout(
    sequences: list[Sequence], tokens: int, entries: int, page: int, pages: int, rng: np.random.Generator
) -> Step:
    """One after another, with a page list from shuffled pages; what does not fit is an error of the test."""
    free = list(rng.permutation(np.arange(1, pages)))
    rows: list[tuple[int, ...]] = []  # segment, parent, context, position, slot, first entry, context keys, first own
    table: list[tuple[int, int, int, int]] = []
    segment = 1000
    for context, s in enumerate(sequences):
        length, first = s.kept + s.new, len(table)
        own_pages = [int(free.pop()) for _ in range(-(-length // page))]
        table += [(p, context, n * page, min(page, length - n * page)) for n, p in enumerate(own_pages)]
        for position in range(s.kept, length):
            slot = own_pages[position // page] * page + position % page
            rows.append((context, context, context, position, slot, first, position + 1, len(rows) + 1))
        if s.again:
            rows.append((context, context, context, length - 1, -1, first, length, len(rows) + 1))
        for item, branches in s.items:
            begin, own = len(rows), segment
            for n in range(item):
                rows.append((own, context, context, length + n, -1, first, length, begin))
            segment += 1
            for branch in branches:
                for n in range(branch):
                    rows.append((segment, own, context, length + item + n, -1, first, length, begin))
                segment += 1
    assert len(rows) <= tokens, len(rows)
    assert len(table) <= entries, len(table)
    count = len(rows)
    rows += [(PADDING, PADDING, PADDING, PADDING, -1, 0, 0, n + 1) for n in range(count, tokens)]
    table += [(0, PADDING, 0, 0)] * (entries - len(table))
    columns = [np.array(c, np.int32) for c in zip(*rows, strict=True)]
    places = Places(*columns[:4])
    queries = Queries(places, np.arange(tokens, dtype=np.int32), *columns[5:], np.int32(count))
    entries_of = [np.array(c, np.int32) for c in zip(*table, strict=True)]
    readouts = max(8, tokens // 8)
    at = np.sort(rng.choice(count, min(readouts, count), replace=False)).astype(np.int32) if count else np.zeros(0, int)
    readout_at = np.full(readouts, at[-1] if len(at) else 0, np.int32)
    readout_at[: len(at)] = at
    ids = rng.integers(0, 100, tokens).astype(np.int32)
    step = Step(ids, queries, columns[4], PageTable(*entries_of), readout_at, np.int32(len(at)))
    return jax.tree.map(jnp.asarray, step)


def case(
    sequences: list[Sequence],
    tokens: int,
    *,
    page: int = 64,
    entries: int = 32,
    pages: int = 40,
    layers: int = 2,
    layer: int = 1,
    kv_heads: int = 2,
    group: int = 2,
    head_dim: int = 32,
    dtype: jnp.dtype = jnp.float32,
    seed: int = 0,
) -> Case:
    rng = np.random.default_rng(seed)
    step = layout(sequences, tokens, entries, page, pages, rng)
    shape = StepShape(tokens, len(step.readouts), 16, entries, page)

    def random(*size: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(size, np.float32), dtype)

    pool = KvPool(*(random(layers, pages, page, kv_heads, head_dim) for _ in range(2)))
    q, k, v = random(tokens, kv_heads, group, head_dim), *(random(tokens, kv_heads, head_dim) for _ in range(2))
    return Case(shape, step, q, KeyValues(k, v, pool, jnp.int32(layer)))


def attended(attention, case: Case) -> tuple[jax.Array, jax.Array, KvPool]:
    """Written, then asked by all tokens and by the read-outs, as the decoder does it."""

    @jax.jit
    def run(q, keys, step):
        pool = attention.write(keys.pool, keys.layer, keys.k, keys.v, step)
        keys = replace(keys, pool=pool)
        some = step.queries.take(step.readouts, step.num_readouts)
        out = [
            attention.attend(part, keys, asking, step, case.shape, attention.prepare(asking, step, case.shape))
            for part, asking in ((q, step.queries), (q[step.readouts], some))
        ]
        return out[0], out[1], pool

    return run(case.q, case.keys, case.step)


def real(case: Case, out: jax.Array, at_readouts: bool = False) -> np.ndarray:
    """Of the real tokens."""
    count = int(case.step.num_readouts if at_readouts else case.step.queries.count)
    return np.asarray(out, np.float32)[:count]
