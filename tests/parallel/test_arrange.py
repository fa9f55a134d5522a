"""How many devices share a model and how many replicas there are, and why."""

import pytest

from onepass.errors import ConfigError
from onepass.parallel.placement import Machine, Placement, arrange

GIB = 1 << 30
EIGHT = Machine(8, 32 * GIB, apart=True)


def of(gib: int):  # type: ignore[no-untyped-def]
    return lambda tp: gib * GIB // tp


@pytest.mark.parametrize(
    ("gib", "asked", "found"),
    [
        (1, (None, None), (1, 8)),  # a model that fits one device is replicated, not split
        (30, (None, None), (2, 4)),
        (140, (None, None), (8, 1)),
        (1, (4, None), (4, 2)),
        (1, (None, 2), (1, 2)),
        (30, (None, 2), (2, 2)),
        (1, (2, 3), (2, 3)),
    ],
)
def test_the_smallest_split_that_fits_is_replicated(
    gib: int, asked: tuple[int | None, int | None], found: tuple[int, int]
) -> None:
    made = arrange(*asked, EIGHT, of(gib))
    assert (made.tp, made.dp) == found
    assert made.reason


def test_the_reason_names_sizes_and_what_was_asked() -> None:
    assert str(arrange(None, None, EIGHT, of(30))) == (
        "tp=2, dp=4: the model fits 2 devices (15.00 GiB of weights in 32.00 GiB each); 4 replicas on 8 devices"
    )
    assert arrange(2, 2, EIGHT, of(1)) == Placement(2, 2, "both were asked for")
    assert "tp=4 was asked for" in arrange(4, None, EIGHT, of(1)).reason


def test_devices_of_one_cpu_are_used_only_when_asked_for() -> None:
    cpu = Machine(8, 32 * GIB, apart=False)
    assert (arrange(None, None, cpu, of(1)).tp, arrange(None, None, cpu, of(1)).dp) == (1, 1)
    assert (arrange(2, 4, cpu, of(1)).tp, arrange(2, 4, cpu, of(1)).dp) == (2, 4)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((16, None), "tp=16 needs 16 devices; there are 8"),
        ((None, 9), "dp=9 needs 9 devices; there are 8"),
        ((4, 4), "tp=4 and dp=4 need 16 devices; there are 8"),
    ],
)
def test_more_than_there_are_is_refused(asked: tuple[int | None, int | None], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        arrange(*asked, EIGHT, of(1))


def test_a_model_that_fits_nowhere_is_refused_with_sizes() -> None:
    with pytest.raises(ConfigError, match=r"25.00 GiB on each of 8 devices; 19.20 GiB of a device's 32.00 GiB"):
        arrange(None, None, EIGHT, of(200))
