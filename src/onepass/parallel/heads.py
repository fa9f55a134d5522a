"""How a model's heads are dealt to the devices that share it: whole KV heads, each with its share of query heads.

Where KV heads do not go round, they are copied, and a copy takes part of its group's query heads; where that still
leaves a remainder, zero heads fill up. Both change no result: a copy computes what the original does, and a zero head's
rows of the output projection are zero. With 9 query and 3 KV heads on 2 devices (numbers are query heads, . is zero):

    device 0: kv 0 (0 1 2)   kv 1 (3 4 5)        device 1: kv 2 (6 7 8)   kv . (. . .)

and with 12 query and 2 KV heads on 4: 0 (0 1 2) | 0 (3 4 5) | 1 (6 7 8) | 1 (9 10 11).
"""

from dataclasses import dataclass

from onepass.errors import ConfigError


@dataclass(frozen=True)
class HeadSplit:
    """`kv_heads` and `group` are those of the model; each KV head is there `copies` times, and `group_share` query
    heads go with a copy. `held` is how many KV heads there are in all, with copies and zero heads."""

    kv_heads: int
    group: int
    devices: int
    copies: int
    held: int

    @property
    def group_share(self) -> int:
        return -(-self.group // self.copies)

    def kv_head(self, place: int) -> int | None:
        """Which of the model's KV heads lies at this place, or None for a zero head."""
        head = place // self.copies
        return head if head < self.kv_heads else None

    def queries(self, place: int) -> range:
        """The model's query heads that go with the KV head at this place, fewer than `group_share` at a remainder."""
        head, copy = divmod(place, self.copies)
        if head >= self.kv_heads:
            return range(0)
        first = min(copy * self.group_share, self.group)
        last = min(first + self.group_share, self.group)
        return range(head * self.group + first, head * self.group + last)


def split_heads(num_heads: int, num_kv_heads: int, devices: int) -> HeadSplit:
    """The split with the fewest query heads a device, then the fewest KV heads, then the fewest copies."""
    if devices > num_heads:
        raise ConfigError(
            f"{num_heads} query heads cannot be split over {devices} devices; tp must be from 1 to {num_heads}"
        )
    group = num_heads // num_kv_heads
    candidates = [
        HeadSplit(num_kv_heads, group, devices, copies, _held(num_kv_heads, copies, devices))
        for copies in range(1, group + 1)
    ]
    return min(candidates, key=lambda s: (s.held * s.group_share, s.held, s.copies))


def _held(kv_heads: int, copies: int, devices: int) -> int:
    """The fewest places that hold `copies` of every KV head and go round `devices`."""
    while kv_heads * copies % devices:
        kv_heads += 1
    return kv_heads * copies
