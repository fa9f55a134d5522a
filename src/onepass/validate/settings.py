"""What a validation is asked to cover.

Which checks there are is `suite`; how close numbers must be is `evidence.tolerance`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onepass.engine.config import Quantize
from onepass.errors import ConfigError
from onepass.evidence.tolerance import Dtype

Torch = Literal["auto", "require", "off"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
COUNTS = (1, 2, 8, 33, 128, 500)
QUICK_COUNTS = (1, 2, 8, 33)
# The ways to compute that are compared with `serial`; a name is a mode, with its mask where it has one.
WAYS = ("packed-dense", "packed-segment", "chunked", "extend", "auto")
CHECKS = ("modes", "isolation", "continuations", "torch")


@dataclass(frozen=True)
class Settings:
    counts: tuple[int, ...] = COUNTS
    query_tokens: int = 100
    item_tokens: int = 24  # the longest item; lengths vary from 0 to this
    seed: int = 0
    ways: tuple[str, ...] = WAYS
    checks: tuple[str, ...] = CHECKS
    num_labels: int = 8
    serial_items: int = 24  # beyond this many items, the serial side is a sample
    torch: Torch = "auto"
    torch_python: Path | None = None
    quantize: Quantize | None = None  # also this, beside the same model unquantized
    quantize_activations: bool | None = None  # of that; None: as the engine decides

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 1:
            raise ConfigError(f"item counts must be whole numbers of at least 1; got {self.counts}")
        if self.query_tokens < 32:
            raise ConfigError(
                f"query tokens must be at least 32, for a part of it to be cached; got {self.query_tokens}"
            )
        if self.item_tokens < 4:
            raise ConfigError(f"item tokens must be at least 4, for lengths to vary; got {self.item_tokens}")
        for what, asked, known in (("modes", self.ways, WAYS), ("checks", self.checks, CHECKS)):
            unknown = [name for name in asked if name not in known]
            if unknown or not asked:
                raise ConfigError(f"{what} must be some of {', '.join(known)}; got {', '.join(unknown) or 'none'}")
        if self.only_torch and self.torch == "off":
            raise ConfigError("checks must leave something to check; got torch alone, and torch is off")

    @property
    def only_torch(self) -> bool:
        return set(self.checks) == {"torch"}

    @property
    def packed_ways(self) -> tuple[str, ...]:
        """Those that put several items in one step; `auto` only chooses among them."""
        return tuple(way for way in self.ways if way != "auto")

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence: a query, an item, a delimiter, a continuation."""
        return max(512, self.query_tokens + self.item_tokens + 64)

    @property
    def most_tokens(self) -> int:
        """What the largest request has, about: items are a third as long as the longest."""
        return self.query_tokens + max(self.counts) * self.item_tokens // 3

    @property
    def controlled_counts(self) -> frozenset[int]:
        """The counts whose checks have a negative control. Its attention lets every token ask every key, so large
        counts rely on those of 8 and 33 items in the same way of computing."""
        return frozenset({self.middle_count, self.large_count}) - {1}

    @property
    def middle_count(self) -> int:
        """The count for checks that need a handful of items, not every count: 8, or the nearest there is."""
        return min(self.counts, key=lambda count: abs(count - 8))

    @property
    def large_count(self) -> int:
        """The count for checks that need more than one chunk or step: 33, or the nearest there is."""
        return min(self.counts, key=lambda count: abs(count - 33))
