"""A share is what one of several devices holds and computes."""

import pytest

from capacity.deployments import BF16
from onepass.capacity.shard import Share
from onepass.errors import ConfigError
from onepass.models.known import known_config


def test_four_devices_hold_a_quarter_each() -> None:
    whole, quarter = (Share(known_config("qwen3-4b"), BF16, tp).cost for tp in (1, 4))
    assert whole.weight_bytes == 2 * known_config("qwen3-4b").num_parameters
    assert quarter.weight_bytes == pytest.approx(whole.weight_bytes / 4, rel=0.01)
    assert quarter.page_bytes(1000) == whole.page_bytes(1000) / 4
    assert quarter.flops_per_token == pytest.approx(whole.flops_per_token / 4, rel=0.01)


def test_two_kv_heads_on_eight_devices_are_copied() -> None:
    """Qwen2.5-1.5B: each device keeps one of the two, so that contexts shrink by two and not by eight."""
    whole, eighth = (Share(known_config("qwen2.5-1.5b"), BF16, tp).cost for tp in (1, 8))
    assert eighth.page_bytes(1000) == whole.page_bytes(1000) / 2


def test_more_devices_than_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match="9 query heads cannot be split over 16 devices"):
        Share(known_config("smollm2-135m"), BF16, 16)
