"""Every device gets whole KV heads with their share of query heads, and every query head is somewhere once."""

import pytest

from onepass.errors import ConfigError
from onepass.models.known import KNOWN
from onepass.parallel.heads import split_heads


@pytest.mark.parametrize("devices", range(1, 10))
@pytest.mark.parametrize("name", KNOWN)
def test_every_query_head_is_somewhere_once_with_its_kv_head(name: str, devices: int) -> None:
    config = KNOWN[name]
    split = split_heads(config.num_heads, config.num_kv_heads, devices)
    assert split.held % devices == 0
    found = []
    for place in range(split.held):
        queries = split.queries(place)
        assert len(queries) <= split.group_share
        assert {query // config.group for query in queries} <= {split.kv_head(place)}
        found += queries
    assert sorted(found) == list(range(config.num_heads))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "devices", "each"),
    [
        (16, 8, 4, (4, 2)),  # they go round
        (16, 8, 8, (2, 1)),
        (16, 2, 8, (2, 1)),  # KV heads are copied
        (12, 2, 4, (3, 1)),
        (12, 2, 8, (2, 1)),  # copied, and four zero query heads
        (9, 3, 2, (6, 2)),  # a zero KV head
        (9, 3, 8, (2, 1)),
    ],
)
def test_a_device_holds_as_few_heads_as_can_be(heads: int, kv_heads: int, devices: int, each: tuple[int, int]) -> None:
    split = split_heads(heads, kv_heads, devices)
    assert (split.held * split.group_share // devices, split.held // devices) == each


def test_one_device_holds_the_model_as_it_is() -> None:
    for config in KNOWN.values():
        split = split_heads(config.num_heads, config.num_kv_heads, 1)
        assert (split.copies, split.held) == (1, config.num_kv_heads)


def test_more_devices_than_heads_are_refused_with_what_is_supported() -> None:
    with pytest.raises(ConfigError, match="9 query heads cannot be split over 10 devices; tp must be from 1 to 9"):
        split_heads(9, 3, 10)
