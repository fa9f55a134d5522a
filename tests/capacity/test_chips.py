"""Targets are named as users name them, and figures are of one device."""

import numpy as np
import pytest

from onepass.capacity.chips import CHIPS, GIB, Target
from onepass.errors import ConfigError

BF16, FLOAT32 = np.dtype("float16"), np.dtype("float32")  # only the size counts


@pytest.mark.parametrize(
    ("name", "full", "chips", "devices"),
    [
        ("v6e:2x2", "v6e:2x2", 4, 4),
        ("v6e", "v6e:1x1", 1, 1),
        ("v5p:2x2x1", "v5p:2x2x1", 4, 4),
        ("v7x:2x2x1", "v7x:2x2x1", 4, 8),
        ("H100:8", "h100:8", 8, 8),
        ("rtx-pro-6000", "rtx-pro-6000:1", 1, 1),
    ],
)
def test_a_name_says_which_chips_and_how_many(name: str, full: str, chips: int, devices: int) -> None:
    target = Target.parse(name)
    assert (str(target), target.chips, target.devices) == (full, chips, devices)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v9:2x2", "a target is one of v5e, v5p, v6e, v7x, a100"),
        ("h100:2x2", "h100 takes a count from 1 to 8, as in h100:8; got 'h100:2x2'"),
        ("h100:0", "from 1 to 8"),
        ("h100:9", "from 1 to 8"),
        ("v6e:4", "2 sizes of at least 1"),
        ("", "a target is one of"),
    ],
)
def test_a_name_that_is_none_says_what_is_wanted(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Target.parse(name)


def test_a_chip_of_two_devices_is_halved() -> None:
    chip, target = CHIPS["v7x"], Target.parse("v7x:1x1x1")
    assert target.devices == 2
    assert target.flops(BF16) == chip.flops / 2
    assert target.bandwidth == chip.bandwidth / 2
    assert target.memory_bytes < chip.memory_bytes / 2


def test_programs_get_less_than_the_chip_has() -> None:
    assert 30 * GIB < Target.parse("v6e").memory_bytes < 32 * GIB
    for name in CHIPS:
        assert 0 < Target.parse(name).memory_bytes < CHIPS[name].memory_bytes


def test_float32_is_slower_than_bfloat16_everywhere() -> None:
    for name in CHIPS:
        target = Target.parse(name)
        assert target.flops(FLOAT32) < target.flops(BF16)
