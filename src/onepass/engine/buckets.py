"""The ladder of padded sizes. A program is compiled for a rung, never for a request.

Token counts have four rungs an octave (at most 25 % over, about 11 % on average); counts that cost little (read-outs,
labels, rows) have one. Which rungs a request needs is `plan`'s work.
"""

from onepass.attention.base import RowShape


def token_rung(count: int) -> int:
    """The smallest of {1, 1.25, 1.5, 1.75} · 2^k, a multiple of 16, that holds `count`; 0 stays 0."""
    if count <= 0:
        return 0
    octave = 1 << ((count - 1).bit_length() - 1) if count > 1 else 1
    step = max(16, octave // 4)
    return -(-count // step) * step


def power_rung(count: int, least: int = 1) -> int:
    """The smallest power of two that holds `count`; 0 stays 0."""
    if count <= 0:
        return 0
    return max(least, 1 << (count - 1).bit_length())


def prefix_rung(count: int) -> int:
    """Prefix padding costs only attention, so two rungs an octave do: {1, 1.5} · 2^k from 64."""
    if count <= 0:
        return 0
    whole = power_rung(count, 64)
    return whole * 3 // 4 if whole > 64 and count <= whole * 3 // 4 else whole


def bucket(needed: RowShape) -> RowShape:
    """The rungs that hold what a step needs."""
    items = token_rung(needed.items)
    if not items and not needed.context:
        items = 16  # nothing but empty items: a row still has tokens
    return RowShape(
        rows=power_rung(needed.rows),
        prefix=prefix_rung(needed.prefix),
        context=token_rung(needed.context),
        items=items,
        band=min(power_rung(max(1, needed.band), 16), power_rung(items, 16)),
        readouts=power_rung(needed.readouts, 8) if needed.readouts > 1 else 1,
        labels=power_rung(needed.labels, 4),
    )


def holds(large: RowShape, small: RowShape) -> bool:
    """Whether a program compiled for `large` can run what needs `small`; kept prefixes can be padded to be wider."""
    return (
        large.prefix >= small.prefix
        and bool(large.prefix) == bool(small.prefix)
        and large.rows >= small.rows
        and large.context >= small.context
        and large.items >= small.items
        and large.band >= small.band
        and large.readouts >= small.readouts
        and large.labels >= small.labels
    )
